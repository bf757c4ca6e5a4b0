/* Checks @name@.c with one window and the scores that a simulation of it gives, bit for bit: 0 if they are the same. */
#include <stdio.h>

#include "@name@.h"

@ARRAYS@
int main(void)
{
    static @name@_state state;
    int32_t scores[@NAME@_CLASSES];
    double largest = 0.0, from_float = 0.0;
    int best, i;

    best = @name@_window(&state, window, scores);
    for (i = 0; i < @NAME@_CLASSES; i++) {
        const double difference = scores[i] > expected[i] ? (double)scores[i] - expected[i]
                                                          : (double)expected[i] - scores[i];
        const double value = (double)scores[i] * @NAME@_SCORE_SCALE;
        const double gap = value > in_float[i] ? value - in_float[i] : in_float[i] - value;

        if (difference > largest) {
            largest = difference;
        }
        if (gap > from_float) {
            from_float = gap;
        }
        printf("class %d: %ld, expected %ld; %g, in float32 %g\n", i, (long)scores[i], (long)expected[i], value,
               (double)in_float[i]);
    }
    printf("class %d is the best; largest difference %.0f, allowed 0: %s; from float32 %g\n", best, largest,
           largest > 0.0 ? "WRONG" : "right", from_float);
    return largest > 0.0;
}
