static void product(const float *matrix, const float *x, int rows, int columns, float *out)
{
    int i;

    for (i = 0; i < rows; i++) {
        out[i] = dot(matrix, x, columns);
        matrix += columns;
    }
}
