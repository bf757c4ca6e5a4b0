/* With 15 bits behind the binary point, from the table, with straight lines between its points. */
static int32_t sigmoid(int32_t x)
{
    int32_t size = x < 0 ? -x : x;
    int32_t at, found;

    if (size > @TABLE_LAST@) {
        size = @TABLE_LAST@;
    }
    at = size >> @TABLE_STEP_BITS@;
    found = @TABLE_HALF@ + table[at];
    found += (((int32_t)table[at + 1] - table[at]) * (size & @TABLE_REST@) + @TABLE_ROUND@) >> @TABLE_STEP_BITS@;
    return x < 0 ? @TABLE_ONE@ - found : found;
}
