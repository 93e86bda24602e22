// One kernel set; see kernels.hpp. CMakeLists.txt compiles this file once per set.
#include "kernels.hpp"

#include "adam.hpp"
#include "digest.hpp"
#include "sgd.hpp"

#define EVERSTEP_STRING_(x) #x
#define EVERSTEP_STRING(x) EVERSTEP_STRING_(x)

namespace everstep::EVERSTEP_KERNELS {

extern const Kernels kernels;
const Kernels kernels = {EVERSTEP_STRING(EVERSTEP_KERNELS), digest, adam<float>, adam<double>, sgd<float>, sgd<double>};

}  // namespace everstep::EVERSTEP_KERNELS
