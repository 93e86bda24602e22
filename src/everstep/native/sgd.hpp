// SGD with the roundings of torch's CPU kernels, k gradients per pass over memory.
//
// All implementations agree, except that the fused kernel's scalar tail contracts the momentum the other way round:
// fma(momentum, b, w * g) instead of fma(w, g, momentum * b).
#pragma once

#include "arithmetic.hpp"
#include "kernels.hpp"

namespace everstep::EVERSTEP_KERNELS {

template <class T, bool tail>
void update_momentum(const SgdStep<T>& s, const T* __restrict g, T* __restrict b, long n) {
    const T momentum = s.momentum, weight = s.gradient_weight;
    if (s.first) {
        for (long i = 0; i < n; ++i) b[i] = g[i];
    } else {
        for (long i = 0; i < n; ++i)
            b[i] = tail ? fma(momentum, b[i], weight * g[i]) : fma(weight, g[i], momentum * b[i]);
    }
}

template <class T>
void add_scaled(T* __restrict target, const T* __restrict source, T scale, long n) {
    for (long i = 0; i < n; ++i) target[i] = fma(source[i], scale, target[i]);
}

template <class T>
void look_ahead(T* __restrict target, const T* g, const T* __restrict b, T momentum, long n) {
    for (long i = 0; i < n; ++i) target[i] = fma(b[i], momentum, g[i]);
}

template <class T, bool tail>
void sgd_block(const SgdTensor<T>& t, std::int64_t begin, long n) {
    alignas(64) T scratch[block_elements<T>];
    alignas(64) T ahead[block_elements<T>];
    T* const p = t.parameter + begin;
    for (std::int64_t j = 0; j < t.k; ++j) {
        if (t.gradients[j] == nullptr) continue;
        const SgdStep<T>& s = t.steps[j];
        const T* direction = effective_gradient(t.gradients[j] + begin, p, t.negate, s.weight_decay, scratch, n);
        if (s.momentum != 0) {
            T* const b = t.momentum_buffer + begin;
            update_momentum<T, tail>(s, direction, b, n);
            if (t.nesterov) {
                look_ahead(ahead, direction, b, s.momentum, n);
                direction = ahead;
            } else {
                direction = b;
            }
        }
        add_scaled(p, direction, s.negative_lr, n);
    }
}

template <class T>
void sgd(const SgdTensor<T>& t, std::int64_t begin, std::int64_t end) {
    const std::int64_t body = end < t.tail ? end : t.tail;
    for (; begin < body; begin += block_elements<T>) {
        const std::int64_t left = body - begin;
        sgd_block<T, false>(t, begin, left < block_elements<T> ? left : block_elements<T>);
    }
    if (t.tail < end) sgd_block<T, true>(t, t.tail, end - t.tail);
}

}  // namespace everstep::EVERSTEP_KERNELS
