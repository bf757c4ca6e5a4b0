static void product(const int8_t *matrix, const int16_t *x, int rows, int columns, int32_t multiplier, int shift,
                    int16_t *out)
{
    int i;

    for (i = 0; i < rows; i++) {
        out[i] = (int16_t)rescaled(dot(matrix, x, columns), multiplier, shift, 32767);
        matrix += columns;
    }
}
