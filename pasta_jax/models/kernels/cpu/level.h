// All that is compiled once for each instruction set: included with TARGET, LEVEL, LANES and SUMS defined.
//
// TARGET: the attribute of its functions; LEVEL: its namespace; LANES: floats in a vector; SUMS: vectors of sums that
// its registers hold beside what is added.

namespace {
namespace LEVEL {

#include "vectors.h"
//
#include "products.h"
//
#include "attention.h"
//
#include "gate.h"

}  // namespace LEVEL
}  // namespace

#undef TARGET
#undef LEVEL
#undef LANES
#undef SUMS
