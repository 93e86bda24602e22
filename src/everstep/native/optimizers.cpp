// adam and sgd: rounds the scalars of k steps as torch does, then runs one pass over every tensor.
#include <cmath>
#include <type_traits>

#include "calls.hpp"
#include "checks.hpp"
#include "dispatch.hpp"
#include "spans.hpp"

namespace everstep {

namespace {

// 128 KiB per stream of float32: long enough for the prefetchers, short enough to balance two uneven cores.
constexpr std::int64_t span_elements = 32 << 10;

bool is_fused(const std::string& implementation) {
    const bool fused = implementation == "fused";
    require(fused || implementation == "single" || implementation == "foreach",
            "implementation '" + implementation + "' is none of single, foreach, fused");
    return fused;
}

// ATen's fused CPU kernels are built for AVX2 (never for AVX-512) and finish a tensor with a scalar loop.
template <class T>
std::int64_t tail_of(std::int64_t count, bool fused) {
    return fused ? count - count % static_cast<std::int64_t>(32 / sizeof(T)) : count;
}

// [k][tensor] to [tensor][k], so that one tensor's k gradients lie together.
template <class T>
std::vector<const T*> by_tensor(const std::vector<Addresses>& gradients, std::size_t tensors) {
    std::vector<const T*> pointers(gradients.size() * tensors);
    for (std::size_t j = 0; j < gradients.size(); ++j)
        for (std::size_t i = 0; i < tensors; ++i)
            pointers[i * gradients.size() + j] = reinterpret_cast<const T*>(gradients[j][i]);
    return pointers;
}

template <class T, class Tensor>
void run(const std::vector<Tensor>& tensors, const Counts& counts, std::size_t k, int threads,
         void (*kernel)(const Tensor&, std::int64_t, std::int64_t)) {
    const std::vector<Span> spans = cut(counts, span_elements);
    std::int64_t elements = 0;
    for (const std::int64_t count : counts) elements += count;
    const std::int64_t bytes = elements * static_cast<std::int64_t>(sizeof(T) * (3 + k));
    for_each_span(spans, bytes, threads,
                  [&](std::size_t i) { kernel(tensors[spans[i].tensor], spans[i].begin, spans[i].end); });
}

template <class T>
AdamStep<T> adam_step(const std::array<double, 5>& hyper, double step, const AdamCall& call, bool fused) {
    const auto [lr, beta1, beta2, eps, weight_decay] = hyper;
    const double correction1 = 1 - std::pow(beta1, step);
    const double correction2 = 1 - std::pow(beta2, step);
    double decay = fused ? std::fma(-lr, weight_decay, 1.0) : 1 - lr * weight_decay;  // Python does not contract
    double step_size = lr / correction1;
    if (call.lr_float32) {  // lr is a float32 tensor: the Python code's scalars are float32 tensors, too
        decay = 1.0f - static_cast<float>(lr) * static_cast<float>(weight_decay);
        step_size = static_cast<float>(lr) / static_cast<float>(correction1);
    }
    AdamStep<T> s;
    s.decay = call.decoupled && weight_decay != 0 ? static_cast<T>(decay) : T(1);
    s.weight_decay = call.decoupled ? T(0) : static_cast<T>(weight_decay);
    s.lerp_weight = static_cast<T>(1 - beta1);
    s.lerp_near = std::abs(s.lerp_weight) < T(0.5);
    if (!s.lerp_near) s.lerp_weight = T(1) - s.lerp_weight;
    s.beta2 = static_cast<T>(beta2);
    s.square_weight = static_cast<T>(1 - beta2);
    s.step_size = static_cast<T>(step_size);
    // Python's x ** 0.5 is pow, which need not equal sqrt; the fused kernel calls sqrt.
    s.root_divisor = static_cast<T>(fused ? std::sqrt(correction2) : std::pow(correction2, 0.5));
    s.epsilon = static_cast<T>(eps);
    return s;
}

}  // namespace

template <class T>
void adam(const AdamCall& call) {
    const std::size_t tensors = call.parameters.size(), k = call.hyper.size();
    const bool fused = is_fused(call.implementation), amsgrad = !call.max_exp_avg_sqs.empty();
    require_length("exp_avgs", call.exp_avgs.size(), tensors);
    require_length("exp_avg_sqs", call.exp_avg_sqs.size(), tensors);
    if (amsgrad) require_length("max_exp_avg_sqs", call.max_exp_avg_sqs.size(), tensors);
    require_length("counts", call.counts.size(), tensors);
    require_counts("counts", call.counts);
    require_rows("gradients", call.gradients, k, tensors);
    require_rows("steps", call.steps, k, tensors);
    require_threads(call.threads);
    require(!fused || call.square_root == 0, "the fused kernel's square root is correctly rounded: pass square_root=0");
    for (const auto& hyper : call.hyper)
        require(fused || hyper[1] != 0, "beta1 = 0: the sign of a zero exp_avg depends on how ATen cuts the tensor");
    require(!call.lr_float32 || call.implementation == "single", "only 'single' computes with a float32 lr");

    const std::vector<const T*> gradients = by_tensor<T>(call.gradients, tensors);
    std::vector<AdamStep<T>> steps(tensors * k);
    for (std::size_t j = 0; j < k; ++j) {
        for (std::size_t i = 0; i < tensors; ++i) {  // pow is slow and tensors mostly share their step count
            const double step = call.steps[j][i];
            const bool same = i > 0 && step == call.steps[j][i - 1];
            steps[i * k + j] = same ? steps[(i - 1) * k + j] : adam_step<T>(call.hyper[j], step, call, fused);
        }
    }
    std::vector<AdamTensor<T>> parts(tensors);
    for (std::size_t i = 0; i < tensors; ++i) {
        parts[i] = {reinterpret_cast<T*>(call.parameters[i]),
                    reinterpret_cast<T*>(call.exp_avgs[i]),
                    reinterpret_cast<T*>(call.exp_avg_sqs[i]),
                    amsgrad ? reinterpret_cast<T*>(call.max_exp_avg_sqs[i]) : nullptr,
                    gradients.data() + i * k,
                    steps.data() + i * k,
                    static_cast<std::int64_t>(k),
                    tail_of<T>(call.counts[i], fused),
                    call.maximize,
                    reinterpret_cast<SquareRoot<T>>(call.square_root)};
    }
    if constexpr (std::is_same_v<T, float>) run<T>(parts, call.counts, k, call.threads, active_kernels().adam32);
    else run<T>(parts, call.counts, k, call.threads, active_kernels().adam64);
}

template <class T>
void sgd(const SgdCall& call) {
    const std::size_t tensors = call.parameters.size(), k = call.hyper.size();
    const bool fused = is_fused(call.implementation);
    bool momentum = false;
    for (const auto& hyper : call.hyper) momentum = momentum || hyper[1] != 0;
    require_length("momentum_buffers", call.momentum_buffers.size(), momentum ? tensors : 0);
    require_length("counts", call.counts.size(), tensors);
    require_counts("counts", call.counts);
    require_rows("gradients", call.gradients, k, tensors);
    require_rows("first", call.first, k, tensors);
    require_threads(call.threads);

    const std::vector<const T*> gradients = by_tensor<T>(call.gradients, tensors);
    std::vector<SgdStep<T>> steps(tensors * k);
    std::vector<SgdTensor<T>> parts(tensors);
    for (std::size_t i = 0; i < tensors; ++i) {
        for (std::size_t j = 0; j < k; ++j) {
            const auto [lr, momentum_j, dampening, weight_decay] = call.hyper[j];
            steps[i * k + j] = {static_cast<T>(weight_decay), static_cast<T>(momentum_j), static_cast<T>(1 - dampening),
                                static_cast<T>(-lr), call.first[j][i]};
        }
        parts[i] = {reinterpret_cast<T*>(call.parameters[i]),
                    momentum ? reinterpret_cast<T*>(call.momentum_buffers[i]) : nullptr,
                    gradients.data() + i * k,
                    steps.data() + i * k,
                    static_cast<std::int64_t>(k),
                    tail_of<T>(call.counts[i], fused),
                    call.maximize,
                    call.nesterov};
    }
    if constexpr (std::is_same_v<T, float>) run<T>(parts, call.counts, k, call.threads, active_kernels().sgd32);
    else run<T>(parts, call.counts, k, call.threads, active_kernels().sgd64);
}

template void adam<float>(const AdamCall&);
template void adam<double>(const AdamCall&);
template void sgd<float>(const SgdCall&);
template void sgd<double>(const SgdCall&);

}  // namespace everstep
