// The data that waits to be written to one connection, and its order. It does no I/O: it names the
// bytes, and its owner writes them.
//
// Small frames are copied into a buffer and go out before the next frame of an answer. A piece is
// one frame, or, after CutPieces, several. Then a request to the other end does not wait behind a
// whole piece. Bodies of answers are never copied; they are read from the region until Wrote()
// returns the answer or Withdraw gives it back.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "transport/tcp/frame.h"

namespace lockstep::transport::tcp {

class Outbox {
 public:
  // The answer to one fetch of the peer: a piece, or (have == false) its absence.
  struct Answer {
    std::uint64_t id = 0;
    bool have = false;
    std::span<const std::byte> body{};
    std::uint64_t cookie = 0;
  };
  static constexpr std::size_t kFramesAtOnce = 4;
  static constexpr std::size_t kMaxVectors = 1 + 2 * kFramesAtOnce;

  // From here on the bodies of a piece's frames have at most this many bytes. Call it before the
  // first answer.
  void CutPieces(std::size_t most) { frame_bytes_ = most; }

  void PushSmall(FrameType type, std::uint64_t id, std::span<const std::byte> body);
  void PushAnswer(const Answer& answer);

  // Turns an answer that has not begun into "gone" and returns its cookie; nullopt where it has
  // begun or does not exist.
  std::optional<std::uint64_t> Cancel(std::uint64_t id);

  // Bytes of small frames, headers included, that are not written yet.
  std::size_t small_bytes() const { return writing_.size() - written_ + waiting_.size(); }
  // Answers that are not written yet, the current one included.
  std::size_t answers() const { return answers_.size() + (current_ ? 1 : 0); }

  // The next bytes of the stream, in order; returns the number of vectors that were filled, 0 when
  // there is nothing to write.
  std::size_t Gather(std::array<iovec, kMaxVectors>& vectors);
  // The owner has written `bytes` of Gather's vectors. Returns the answer that this completes, if
  // any.
  std::optional<Answer> Wrote(std::size_t bytes);

  // Takes all answers back: the connection has ended.
  std::vector<Answer> Withdraw();

 private:
  void ChooseAnswer();
  // The bytes of the current answer with its headers.
  std::size_t StreamBytes() const;
  // True when the current answer is between two frames.
  bool BetweenFrames() const { return current_written_ % (kHeaderBytes + frame_bytes_) == 0; }

  std::vector<std::byte> writing_;  // small frames on their way, from written_ on
  std::size_t written_ = 0;
  std::vector<std::byte> waiting_;  // small frames behind them
  std::vector<Answer> answers_;     // in the order of the fetches; bounded by the peer's window
  std::optional<Answer> current_;   // follows writing_ in the stream
  std::array<std::array<std::byte, kHeaderBytes>, kFramesAtOnce>
      headers_{};                    // of what Gather named
  std::size_t current_written_ = 0;  // headers and body
  std::size_t frame_bytes_ = kMaxPieceBytes;
};

}  // namespace lockstep::transport::tcp
