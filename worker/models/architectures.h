// The models by name, internal to worker/models; MakeModel is the registry. Each function checks
// the keys that concern it.
#pragma once

#include <memory>

#include "base/result.h"
#include "worker/models/model.h"

namespace lockstep::worker {

// Multinomial logistic regression: one dense layer. It does not use widths, dropout or
// normalization.
Result<std::unique_ptr<Model>> MakeSoftmax(const ModelSpec& spec, Compute& compute);
// It has a dense layer with ReLU for each width, then the classes.
Result<std::unique_ptr<Model>> MakeMlp(const ModelSpec& spec, Compute& compute);
// For each width but the last it has a 3x3 convolution to so many channels, ReLU, and 2x2 max
// pooling. Then come a dense layer of the last width with ReLU, and the classes.
Result<std::unique_ptr<Model>> MakeCnn(const ModelSpec& spec, Compute& compute);

}  // namespace lockstep::worker
