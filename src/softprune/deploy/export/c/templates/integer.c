/* @ABOUT@ */
@INCLUDES@

@ARRAYS@
/* value / 2 ^ bits, halves away from zero. */
static int64_t rounded(int64_t value, int bits)
{
    const int64_t half = bits > 0 ? (int64_t)1 << (bits - 1) : 0;

    return value < 0 ? -((half - value) >> bits) : (value + half) >> bits;
}

static int32_t clamped(int64_t value, int32_t low, int32_t high)
{
    return value < low ? low : value > high ? high : (int32_t)value;
}

/* The weights are so scaled that no sum leaves 32 bits. */
static int32_t dot(const int8_t *a, const int16_t *b, int n)
{
    int32_t sum = 0;
    int i;

    for (i = 0; i < n; i++) {
        sum += (int32_t)a[i] * b[i];
    }
    return sum;
}

static int32_t rescaled(int32_t sum, int32_t multiplier, int shift, int32_t limit)
{
    return clamped(rounded((int64_t)sum * multiplier, shift), -limit, limit);
}

@PRODUCT@@SIGMOID@static int32_t gate(int32_t x)
{
    return @GATE@;
}

static int32_t update(int32_t x)
{
    return @UPDATE@;
}

/* Halves are counted in integers, so that no compiler can fuse a product and a sum and round otherwise. */
static int16_t whole(float value)
{
    const float halves = value * @INPUT_HALVES@;
    int32_t counted;

    if (halves >= 65534.0f) {
        return 32767;
    }
    if (halves <= -65534.0f) {
        return -32767;
    }
    if (halves != halves) {
        return 0;
    }
    counted = (int32_t)halves;
    return (int16_t)((counted < 0 ? counted - 1 : counted + 1) / 2);
}

void @name@_start(@name@_state *state)
{
    int i;

    for (i = 0; i < @NAME@_HIDDEN; i++) {
        state->h[i] = 0;
    }
@RESET@}

void @name@_quantise(const @name@_state *state, const float x[@NAME@_FEATURES], int16_t out[@NAME@_FEATURES])
{
@QUANTISE@}

void @name@_step(@name@_state *state, const float x[@NAME@_FEATURES])
{
    @name@_quantise(state, x, state->x);
    @name@_advance(state, state->x);
}

void @name@_advance(@name@_state *state, const int16_t x[@NAME@_FEATURES])
{
    const int32_t zeta = @ZETA@, nu = @NU@;
    const int8_t *w = w_rows, *u = u_rows;
    int i;

@PREPARE@    for (i = 0; i < @NAME@_HIDDEN; i++) {
        const int32_t sum = @W_SUM@
            + @U_SUM@;
        const int32_t z = gate(clamped((int64_t)sum + gate_bias[i], -@SUM_LIMIT@, @SUM_LIMIT@));
        const int32_t c = update(clamped((int64_t)sum + update_bias[i], -@SUM_LIMIT@, @SUM_LIMIT@));
        const int64_t mix = rounded((int64_t)zeta * (@GATE_ONE@ - z), @GATE_BITS@) + nu;
        const int64_t kept = (int64_t)z * state->h[i] * @KEPT@;

        state->h[i] = (int16_t)clamped(rounded(kept + mix * c * @NEW@, @DOWN@), -32767, 32767);
        w += @W_COLUMNS@;
        u += @U_COLUMNS@;
    }
@COUNT@}

void @name@_scores(const @name@_state *state, int32_t scores[@NAME@_CLASSES])
{
    const int8_t *row = head;
    int i;

    for (i = 0; i < @NAME@_CLASSES; i++) {
        scores[i] = dot(row, state->h, @NAME@_HIDDEN) + head_bias[i];
        row += @NAME@_HIDDEN;
    }
}

@COMMON@
