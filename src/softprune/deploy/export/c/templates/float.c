/* @ABOUT@ */
@INCLUDES@

@ARRAYS@
static float dot(const float *a, const float *b, int n)
{
    float sum = 0.0f;
    int i;

    for (i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

@PRODUCT@static float gate(float x)
{
    return @GATE@;
}

static float update(float x)
{
    return @UPDATE@;
}

void @name@_start(@name@_state *state)
{
    int i;

    for (i = 0; i < @NAME@_HIDDEN; i++) {
        state->h[i] = 0.0f;
    }
@RESET@}

void @name@_step(@name@_state *state, const float x[@NAME@_FEATURES])
{
    const float zeta = @ZETA@, nu = @NU@;
    const float *w = w_rows, *u = u_rows;
    int i;

@PREPARE@    for (i = 0; i < @NAME@_HIDDEN; i++) {
        const float sum = dot(w, @W_INPUT@, @W_COLUMNS@) + dot(u, @U_INPUT@, @U_COLUMNS@);
        const float z = gate(sum + gate_bias[i]);
        const float c = update(sum + update_bias[i]);

        state->h[i] = z * state->h[i] + (zeta * (1.0f - z) + nu) * c;
        w += @W_COLUMNS@;
        u += @U_COLUMNS@;
    }
@COUNT@}

void @name@_scores(const @name@_state *state, float scores[@NAME@_CLASSES])
{
    const float *row = head;
    int i;

    for (i = 0; i < @NAME@_CLASSES; i++) {
        scores[i] = dot(row, state->h, @NAME@_HIDDEN) + head_bias[i];
        row += @NAME@_HIDDEN;
    }
}

@COMMON@
