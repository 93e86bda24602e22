// Adam and AdamW with the roundings of torch's CPU kernels, k gradients per pass over memory.
//
// torch's fused kernel and its operator-by-operator paths ("single", "foreach") agree in everything but two places:
//   exp_avg_sq   fma(w * g, g, beta2 * v) everywhere, but fma(beta2, v, (w * g) * g) in the fused kernel's scalar tail;
//   square root  correctly rounded in the fused kernel, but torch.sqrt in the others, which is MKL's and is not.
#pragma once

#include "arithmetic.hpp"
#include "kernels.hpp"

namespace everstep::EVERSTEP_KERNELS {

// VML_HA | VML_FTZDAZ_OFF | VML_ERRMODE_IGNORE: how ATen calls it.
inline constexpr std::int64_t vml_mode = 0x2 | 0x140000 | 0x100;

// Blocks are longer around a foreign square root: MKL's took 0.9 ns per element in calls of 1024, 0.6 in calls of 4096.
template <class T>
inline constexpr long long_block_elements = 16384 / sizeof(T);

template <class T, bool near, bool tail>
void update_moments(const AdamStep<T>& s, const T* __restrict g, T* __restrict m, T* __restrict v, long n) {
    // The far weight is w - 1 in vector code and -(1 - w) in scalar code: the same, but for the sign of zero at w = 1.
    const T lerp_weight = near ? s.lerp_weight : tail ? -s.lerp_weight : T(0) - s.lerp_weight;
    const T beta2 = s.beta2, square_weight = s.square_weight;
    for (long i = 0; i < n; ++i) {
        m[i] = fma(lerp_weight, g[i] - m[i], near ? m[i] : g[i]);
        const T weighted = square_weight * g[i];
        v[i] = tail ? fma(beta2, v[i], weighted * g[i]) : fma(weighted, g[i], beta2 * v[i]);
    }
}

// A NaN wins, as in torch.maximum; in the fused tail, which is std::max, it loses against an older number.
template <class T, bool tail>
void update_maximum(T* __restrict x, const T* __restrict v, long n) {
    for (long i = 0; i < n; ++i) {
        const bool keep = tail ? !(x[i] < v[i]) : (x[i] > v[i] || x[i] != x[i]);
        x[i] = keep ? x[i] : v[i];
    }
}

template <class T, bool rooted>
void update_parameter(const AdamStep<T>& s, T* __restrict p, const T* __restrict m, const T* __restrict v, long n) {
    const T decay = s.decay, step_size = s.step_size, root_divisor = s.root_divisor, epsilon = s.epsilon;
    const double reciprocal = 1.0 / root_divisor;
    for (long i = 0; i < n; ++i) {
        const T root = rooted ? v[i] : sqrt(v[i]);
        const T update = (-step_size * m[i]) / (divide_root(root, root_divisor, reciprocal) + epsilon);
        p[i] = update + p[i] * decay;  // in this order: of two NaNs, x86 keeps the first
    }
}

template <class T, bool tail>
void adam_block(const AdamTensor<T>& t, std::int64_t begin, long n) {
    alignas(64) T scratch[long_block_elements<T>];
    T* const p = t.parameter + begin;
    T* const m = t.exp_avg + begin;
    T* const v = t.exp_avg_sq + begin;
    for (std::int64_t j = 0; j < t.k; ++j) {
        if (t.gradients[j] == nullptr) continue;
        const AdamStep<T>& s = t.steps[j];
        const T* const g = effective_gradient(t.gradients[j] + begin, p, t.negate, s.weight_decay, scratch, n);
        s.lerp_near ? update_moments<T, true, tail>(s, g, m, v, n) : update_moments<T, false, tail>(s, g, m, v, n);

        const T* squares = v;
        if (t.max_exp_avg_sq != nullptr) {
            update_maximum<T, tail>(t.max_exp_avg_sq + begin, v, n);
            squares = t.max_exp_avg_sq + begin;
        }
        if (t.square_root == nullptr) {
            update_parameter<T, false>(s, p, m, squares, n);
        } else {
            t.square_root(n, squares, scratch, vml_mode);
            update_parameter<T, true>(s, p, m, scratch, n);
        }
    }
}

template <class T>
void adam(const AdamTensor<T>& t, std::int64_t begin, std::int64_t end) {
    const std::int64_t body = end < t.tail ? end : t.tail;
    const std::int64_t length = t.square_root == nullptr ? block_elements<T> : long_block_elements<T>;
    for (; begin < body; begin += length) {
        const std::int64_t left = body - begin;
        adam_block<T, false>(t, begin, left < length ? left : length);
    }
    if (t.tail < end) adam_block<T, true>(t, t.tail, end - t.tail);
}

}  // namespace everstep::EVERSTEP_KERNELS
