#if defined(__x86_64__)
#define SPX_VNNI512
#include "int8.h"
namespace spx {
extern const Table8 kVnni512 = SPX_TABLE8("vnni512");
}
#endif
