#include "dispatch.hpp"

#include <atomic>
#include <stdexcept>
#include <vector>

namespace everstep {

namespace generic { extern const Kernels kernels; }
#ifdef EVERSTEP_X86
namespace avx2 { extern const Kernels kernels; }
namespace avx512 { extern const Kernels kernels; }
#endif

namespace {

// Fastest first.
std::vector<const Kernels*> available() {
    std::vector<const Kernels*> sets;
#ifdef EVERSTEP_X86
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    if (has_avx512) sets.push_back(&avx512::kernels);
    if (has_avx2) sets.push_back(&avx2::kernels);
#endif
    sets.push_back(&generic::kernels);
    return sets;
}

std::atomic<const Kernels*>& active() {
    static std::atomic<const Kernels*> set = available().front();
    return set;
}

}  // namespace

const Kernels& active_kernels() { return *active().load(std::memory_order_relaxed); }

void use_kernels(const std::string& name) {
    for (const Kernels* set : available()) {
        if (name == set->name) {
            active() = set;
            return;
        }
    }
    throw std::invalid_argument("no kernel set '" + name + "' on this CPU");
}

}  // namespace everstep
