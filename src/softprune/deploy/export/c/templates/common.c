int @name@_best(const @SCORE@ scores[@NAME@_CLASSES])
{
    int best = 0, i;

    for (i = 1; i < @NAME@_CLASSES; i++) {
        if (scores[i] > scores[best]) {
            best = i;
        }
    }
    return best;
}

int @name@_window(@name@_state *state, const float window[@NAME@_STEPS * @NAME@_FEATURES],
                  @SCORE@ scores[@NAME@_CLASSES])
{
    int i;

    @name@_start(state);
    for (i = 0; i < @NAME@_STEPS; i++) {
        @name@_step(state, window);
        window += @NAME@_FEATURES;
    }
    @name@_scores(state, scores);
    return @name@_best(scores);
}
