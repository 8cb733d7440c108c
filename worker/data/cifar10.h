// CIFAR-10 in its binary version: records of a label and 3 x 32 x 32 bytes, channel by channel.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "worker/data/byte_source.h"
#include "worker/data/dataset.h"

namespace lockstep::worker {

// Adds the records of one file.
Status ReadCifar10(ByteSource& source, Samples& samples);

// Opens data_batch_1.bin .. data_batch_5.bin and test_batch.bin in `folder`.
Result<std::unique_ptr<Dataset>> OpenCifar10(const std::string& folder);

}  // namespace lockstep::worker
