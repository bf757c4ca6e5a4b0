#include "level.h"
namespace spx {
extern const Table kPortable = SPX_TABLE("portable");
}
