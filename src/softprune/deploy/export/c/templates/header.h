/* @ABOUT@
 *
 * One window: @name@_window. Sample by sample: @name@_start, then @name@_step for each sample, then @name@_scores and
 * @name@_best. The caller owns the state; nothing else is written to.
@MORE@ */
#ifndef @NAME@_H
#define @NAME@_H

@TYPES@#define @NAME@_FEATURES @FEATURES@
#define @NAME@_STEPS @STEPS@
#define @NAME@_HIDDEN @HIDDEN@
#define @NAME@_CLASSES @CLASSES@

@UNITS@#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
@STATE@
} @name@_state;

/* Forget what was seen. */
void @name@_start(@name@_state *state);

/* See one sample: @INPUT@. */
void @name@_step(@name@_state *state, const float x[@NAME@_FEATURES]);

@WHOLE@/* What is known after the samples so far: one score for each class. */
void @name@_scores(const @name@_state *state, @SCORE@ scores[@NAME@_CLASSES]);

/* The class with the largest score. */
int @name@_best(const @SCORE@ scores[@NAME@_CLASSES]);

/* All of it for one window, sample after sample: the scores, and the class that is returned. */
int @name@_window(@name@_state *state, const float window[@NAME@_STEPS * @NAME@_FEATURES],
                  @SCORE@ scores[@NAME@_CLASSES]);

#ifdef __cplusplus
}
#endif

#endif
