#include "fastgrnn.h"
namespace spr {
extern const Table kPortable = {"portable", run_forward, run_backward};
}
