#if defined(__x86_64__)
#define SPX_VNNI256
#include "int8.h"
namespace spx {
extern const Table8 kVnni256 = SPX_TABLE8("vnni256");
}
#endif
