#include "int8.h"
namespace spx {
extern const Table8 kPortable8 = SPX_TABLE8("portable");
}
