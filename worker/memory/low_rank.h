// Products of a matrix with factors of low rank (exchange.compression = powersgd). The source is
// Vogels et al. 2019, "PowerSGD". One product a round is as in ACP-SGD (Zhang et al. 2023,
// "Evaluation and Optimization of Gradient Compression for Distributed Deep Learning").
//
// A matrix of m rows and n columns lies row after row. Its factor of rows P is stored as m times r
// numbers, the factor of columns Q as r times n. So the numbers of a row of the matrix are
// consecutive, and so are those of each column of Q. As in reduce.h, the bits of a result depend on
// the values and their order alone.
//
// Any threads may use it.
#pragma once

#include <cstdint>

#include "base/random.h"

namespace lockstep::worker {

struct MatrixShape {
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::uint32_t rank = 0;
};

// p = M Q.
void TimesColumnFactor(const MatrixShape& shape, const float* matrix, const float* q, float* p);
// q += (M^T P)^T, row after row of the matrix.
void AddTimesRowFactor(const MatrixShape& shape, const float* matrix, const float* p, float* q);
// matrix -= P Q^T.
void SubtractProduct(const MatrixShape& shape, const float* p, const float* q, float* matrix);
// The `n` numbers of P Q^T from the `first` one on.
void Product(const MatrixShape& shape, const float* p, const float* q, std::uint64_t first,
             std::uint64_t n, float* out);

// Makes the r columns, of `length` numbers each, orthogonal to each other and of length one: by
// Gram and Schmidt, each twice. A column that is zero, not a number, or in the span of those before
// it, is replaced by random numbers. There are fewer columns than `length`. `by_rows`: they are
// stored as P, else as Q.
void Orthonormalize(std::uint64_t length, std::uint32_t rank, bool by_rows, RandomStream random,
                    float* factor);

}  // namespace lockstep::worker
