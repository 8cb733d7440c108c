// A model that is a chain of layers, ended by softmax and cross-entropy. It is internal to
// worker/models.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "worker/models/layer.h"
#include "worker/models/model.h"

namespace lockstep::worker {

// `max_rows`: the size of the sub-batches in which a batch is computed. The layers were made for so
// many rows.
std::unique_ptr<Model> MakeNetwork(Compute& compute, std::vector<std::unique_ptr<Layer>> layers,
                                   std::size_t input_size, std::size_t classes,
                                   std::size_t max_rows);

}  // namespace lockstep::worker
