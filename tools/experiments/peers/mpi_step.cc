// A step with MPI_Allreduce. mpirun starts it; the arguments are BYTES:ROUNDS ...
#include <mpi.h>

#include "tools/experiments/peers/measure.h"

namespace {

class Mpi final : public peers::Library {
 public:
  Mpi() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void AllReduce(float* data, std::size_t n) override {
    MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(n), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  void Barrier() override { MPI_Barrier(MPI_COMM_WORLD); }
  std::vector<std::int64_t> Gather(std::int64_t first, std::int64_t second) override {
    const std::int64_t own[2] = {first, second};
    std::vector<std::int64_t> all(2 * static_cast<std::size_t>(size_));
    MPI_Allgather(own, 2, MPI_INT64_T, all.data(), 2, MPI_INT64_T, MPI_COMM_WORLD);
    return all;
  }

 private:
  int rank_ = 0;
  int size_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  {
    Mpi mpi;
    peers::Measure(mpi, {argv + 1, argv + argc});
  }
  MPI_Finalize();
  return 0;
}
