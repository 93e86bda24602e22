// What a kernel set offers: plain functions over one span of one tensor.
//
// kernels.cpp is compiled once per instruction set with EVERSTEP_KERNELS naming the set, so everything it includes
// lives in namespace everstep::EVERSTEP_KERNELS. Those sources use no std containers and no std:: functions: an
// inline function shared between sets could be emitted with AVX-512 code and then be picked by the linker for all.
#pragma once

#include <cstdint>

namespace everstep {

struct Sums {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
};

// Writes the square roots of n elements; the meaning of `mode` is that of MKL's vmsSqrt_64 / vmdSqrt_64.
template <class T>
using SquareRoot = void (*)(std::int64_t n, const T* source, T* target, std::int64_t mode);

// The scalars of one update of one tensor, rounded to the tensor's type where torch rounds them.
template <class T>
struct AdamStep {
    T decay;          // p *= decay; 1 if there is no decoupled weight decay
    T weight_decay;   // g += p * weight_decay, unless 0
    bool lerp_near;   // torch's lerp starts from exp_avg if 1 - beta1 < 1/2, else from the gradient
    T lerp_weight;    // of the way from there: 1 - beta1, or beta1 as 1 - (1 - beta1)
    T beta2;
    T square_weight;  // 1 - beta2
    T step_size;
    T root_divisor;   // sqrt(1 - beta2^step)
    T epsilon;
};

template <class T>
struct AdamTensor {
    T* parameter;
    T* exp_avg;
    T* exp_avg_sq;
    T* max_exp_avg_sq;               // null unless amsgrad
    const T* const* gradients;       // k pointers, null = no gradient in that step
    const AdamStep<T>* steps;        // k
    std::int64_t k;
    std::int64_t tail;               // first element of ATen's scalar tail; the count where there is none
    bool negate;                     // maximize
    SquareRoot<T> square_root;       // null: correctly rounded
};

template <class T>
struct SgdStep {
    T weight_decay;
    T momentum;       // 0: the buffer is neither read nor written
    T gradient_weight;  // 1 - dampening
    T negative_lr;
    bool first;       // this gradient initialises the momentum buffer
};

template <class T>
struct SgdTensor {
    T* parameter;
    T* momentum_buffer;              // null without momentum
    const T* const* gradients;
    const SgdStep<T>* steps;
    std::int64_t k;
    std::int64_t tail;
    bool negate;
    bool nesterov;
};

struct Kernels {
    const char* name;
    Sums (*digest)(const unsigned char* bytes, std::int64_t count, int width, std::uint64_t start);
    void (*adam32)(const AdamTensor<float>& tensor, std::int64_t begin, std::int64_t end);
    void (*adam64)(const AdamTensor<double>& tensor, std::int64_t begin, std::int64_t end);
    void (*sgd32)(const SgdTensor<float>& tensor, std::int64_t begin, std::int64_t end);
    void (*sgd64)(const SgdTensor<double>& tensor, std::int64_t begin, std::int64_t end);
};

}  // namespace everstep
