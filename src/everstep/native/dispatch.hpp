// Which kernel set runs. All sets give the same bits; only their speed differs.
#pragma once

#include <string>

#include "kernels.hpp"

namespace everstep {

const Kernels& active_kernels();

// Chooses a set by name, for tests. Throws std::invalid_argument where this CPU or this build lacks it.
void use_kernels(const std::string& name);

}  // namespace everstep
