 *
 * @name@_step is @name@_quantise and @name@_advance. Floats are in @name@_quantise alone: a device without them makes
 * the whole numbers itself and calls @name@_advance.
