/* Checks @name@.c with one window and the scores that the network it was written from gives: 0 if they agree. */
#include <stdio.h>

#include "@name@.h"

@ARRAYS@
int main(void)
{
    static @name@_state state;
    const float allowed = @TOLERANCE@;
    float scores[@NAME@_CLASSES];
    float largest = 0.0f;
    int best, i, wrong = 0;

    best = @name@_window(&state, window, scores);
    for (i = 0; i < @NAME@_CLASSES; i++) {
        const float difference = scores[i] > expected[i] ? scores[i] - expected[i] : expected[i] - scores[i];

        if (difference > largest) {
            largest = difference;
        }
        if (!(difference <= allowed)) {
            wrong = 1;
        }
        printf("class %d: %.9g, expected %.9g\n", i, (double)scores[i], (double)expected[i]);
    }
    printf("class %d is the best; largest difference %g, allowed %g: %s\n", best, (double)largest, (double)allowed,
           wrong ? "WRONG" : "right");
    return wrong;
}
