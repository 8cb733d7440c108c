// The models by name. Internal to worker/models; the registry is MakeModel. Each checks the keys
// that concern it.
#pragma once

#include <memory>

#include "base/result.h"
#include "worker/models/model.h"

namespace lockstep::worker {

// Multinomial logistic regression: one dense layer. Has no use for widths, dropout or
// normalization.
Result<std::unique_ptr<Model>> MakeSoftmax(const ModelSpec& spec, Compute& compute);
// A dense layer with ReLU for each width, then the classes.
Result<std::unique_ptr<Model>> MakeMlp(const ModelSpec& spec, Compute& compute);
// For each width but the last a 3x3 convolution to so many channels, ReLU, 2x2 max pooling; then a
// dense layer of the last width with ReLU; then the classes.
Result<std::unique_ptr<Model>> MakeCnn(const ModelSpec& spec, Compute& compute);

}  // namespace lockstep::worker
