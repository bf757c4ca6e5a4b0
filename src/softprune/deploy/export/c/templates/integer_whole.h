/* The next sample as whole numbers; what does not fit into 16 bits is cut, and NaN becomes 0. */
void @name@_quantise(const @name@_state *state, const float x[@NAME@_FEATURES], int16_t out[@NAME@_FEATURES]);

/* See one sample in whole numbers. */
void @name@_advance(@name@_state *state, const int16_t x[@NAME@_FEATURES]);

