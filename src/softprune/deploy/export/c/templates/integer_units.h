/* A whole number that is given to @name@_advance stands for itself / 2 ^ @NAME@_INPUT_BITS, @NORMALISED@. */
#define @NAME@_INPUT_BITS @INPUT_BITS@

/* What one unit of a score is. */
#define @NAME@_SCORE_SCALE @SCORE_SCALE@

