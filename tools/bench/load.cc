#include "tools/bench/load.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "tools/simulate/compute_model.h"
#include "tools/simulate/event_queue.h"
#include "tools/simulate/modelled_worker.h"
#include "transport/control/codec.h"
#include "transport/control/frame.h"

namespace lockstep::bench {
namespace {

namespace control = transport::control;

constexpr std::size_t kMaxMessageBytes = 8u << 20;  // as at the coordinator's end
constexpr std::size_t kReadBytes = 1u << 18;
// Sleeping costs tens of microseconds, which would count as the coordinator's.
constexpr Duration kSpin = std::chrono::milliseconds(2);
constexpr double kFast = 1e18;  // bytes in a second, for transfers that must take no time

// Units end at once, or worker after worker, the last one well after the others.
class SpacedCompute final : public simulate::ComputeModel {
 public:
  SpacedCompute(std::uint32_t workers, std::uint32_t units) : workers_(workers), units_(units) {}

  void SpaceOver(Duration all) { all_ = all; }
  bool spaced() const { return all_ > Duration{}; }
  Duration UnitTime(WorkerId worker, Time, RoundId, Epoch, const Unit&, std::uint32_t,
                    RandomStream&) override {
    const Duration whole = worker.value + 1 == workers_
                               ? all_ + all_ / 2
                               : all_ * (worker.value + 1) / static_cast<std::int64_t>(workers_);
    return whole / units_;
  }

 private:
  const std::uint32_t workers_;
  const std::uint32_t units_;
  Duration all_{};
};

simulate::ModelledExchange::Options ExchangeOf(const LoadOptions& options) {
  simulate::ModelledExchange::Options exchange;
  exchange.network.latency = Duration{};
  exchange.network.bytes_per_second = kFast;
  exchange.network.memory_bytes_per_second = kFast;
  exchange.model_bytes = sizeof(float);
  exchange.train_samples = options.train_samples;
  exchange.machine.queue_capacity = worker::kMostUnits;
  return exchange;
}

Error Failed(const std::string& doing) {
  return {ErrorCode::kIo, fmt::format("{}: {}", doing, std::strerror(errno))};
}

}  // namespace

class Load::Impl {
 public:
  Impl(const LoadOptions& options, OnCommit on_commit)
      : options_(options),
        on_commit_(std::move(on_commit)),
        compute_(options.workers, options.units),
        exchange_(ExchangeOf(options), &compute_, options.workers),
        queue_(MonotonicNow()),
        buffer_(kReadBytes) {}
  ~Impl() {
    connections_.clear();
    if (epoll_ >= 0) ::close(epoll_);
  }

  Status Run(Child& coordinator, Signals& signals);

 private:
  class Connection;

  Status Connect();
  // Reads the sockets' data; true: something was there.
  Status ReadAll(const std::vector<Connection*>& ready);
  void RunTimers();
  Status FlushAll();
  void Note(const msg::Commit& commit, Time arrived);
  // A spaced round's commit has come to some workers. They send nothing before all have it: the
  // answers of the first ones would delay the reading of the last.
  bool Holds() const { return compute_.spaced() && seen_by_ > 0 && seen_by_ < options_.workers; }
  void Touch(Connection* connection) { dirty_.push_back(connection); }
  Result<std::shared_ptr<const msg::ToWorker>> Decode(std::span<const std::byte> frame);

  const LoadOptions options_;
  const OnCommit on_commit_;
  SpacedCompute compute_;
  simulate::ModelledExchange exchange_;
  simulate::EventQueue queue_;
  int epoll_ = -1;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> dirty_;  // connections that have something to send
  std::vector<std::byte> buffer_;
  std::size_t open_ = 0;
  // The last frame. Most of the bytes are commits, the same for all.
  std::string last_bytes_;
  std::shared_ptr<const msg::ToWorker> last_message_;

  Time needed_;  // the last write that a round needs
  CommitSeen seen_;
  std::uint32_t seen_by_ = 0;
};

class Load::Impl::Connection final : public simulate::WorkerHost {
 public:
  Connection(Impl* load, std::uint32_t number)
      : load_(load),
        number_(number),
        random_(number),
        reader_(kMaxMessageBytes),
        worker_(this, &load->exchange_) {}
  ~Connection() override { Close(); }

  Status Open();
  void Start() { worker_.OnConnected(); }
  bool open() const { return fd_ >= 0; }
  // False: the other end has closed.
  Result<bool> Read();
  Status TakeFrames();
  void Answer();  // answers messages that were held back
  Status Flush();

  void SendMade(std::function<msg::FromWorker()> make) override { Send(make()); }
  void Send(msg::FromWorker message) override {
    if (fd_ < 0) return;
    needed_ = needed_ || std::holds_alternative<msg::Sealed>(message) ||
              std::holds_alternative<msg::Receipts>(message);
    if (out_.empty()) load_->Touch(this);
    out_ += control::FrameOf(control::Encode(message));
  }
  void At(Time time, simulate::Task task) override {
    load_->queue_.At(std::max(time, load_->queue_.now()), std::move(task));
  }
  void AtPeer(const MemberId&, std::function<void(simulate::WorkerModel&)>) override {
    LOCKSTEP_CHECK(false, "modelled workers do not speak to each other");
  }
  void SetSelf(const MemberId&) override {}
  RandomStream& random() override { return random_; }
  Time now() const override { return MonotonicNow(); }
  std::uint32_t machine() const override { return number_; }
  std::optional<WorkerId> wanted() const override { return WorkerId(number_); }

 private:
  void Close() {
    if (fd_ < 0) return;
    ::close(std::exchange(fd_, -1));
    --load_->open_;
  }

  Impl* load_;
  const std::uint32_t number_;
  RandomStream random_;
  int fd_ = -1;
  control::FrameReader reader_;
  Time arrived_;  // time of the last read
  std::string out_;
  std::vector<std::shared_ptr<const msg::ToWorker>> held_;  // not yet shown to the worker
  bool needed_ = false;                                     // a round needs what is in out_
  simulate::ModelledWorker worker_;
};

Status Load::Impl::Connection::Open() {
  fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0) return Failed("a socket");
  ++load_->open_;
  ::sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(load_->options_.port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<const ::sockaddr*>(&address), sizeof(address)) != 0) {
    return Failed(fmt::format("127.0.0.1:{}", load_->options_.port));
  }
  const int on = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = this;
  ::epoll_ctl(load_->epoll_, EPOLL_CTL_ADD, fd_, &event);
  return {};
}

Result<bool> Load::Impl::Connection::Read() {
  for (;;) {
    const ssize_t got = ::recv(fd_, load_->buffer_.data(), load_->buffer_.size(), MSG_DONTWAIT);
    if (got > 0) {
      arrived_ = MonotonicNow();
      reader_.Append(std::span(load_->buffer_).first(static_cast<std::size_t>(got)));
      if (static_cast<std::size_t>(got) == load_->buffer_.size()) continue;
      return true;
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    // A reset: it has closed over our unread data, as it may at its end.
    Close();
    return false;
  }
}

Status Load::Impl::Connection::TakeFrames() {
  while (true) {
    auto frame = reader_.Next();
    if (!frame) return frame.error();
    if (!*frame) return {};
    auto message = load_->Decode(**frame);
    if (!message) return message.error();
    if (const auto* refused = std::get_if<msg::Refuse>(message->get())) {
      return Error{ErrorCode::kRefused, "the coordinator refuses a worker: " + refused->reason};
    }
    held_.push_back(*message);
    if (const auto* commit = std::get_if<msg::Commit>(message->get()))
      load_->Note(*commit, arrived_);
    if (!load_->Holds()) Answer();
  }
}

void Load::Impl::Connection::Answer() {
  for (const auto& message : std::exchange(held_, {})) worker_.OnMessage(*message);
}

Status Load::Impl::Connection::Flush() {
  std::size_t sent = 0;
  if (needed_) load_->needed_ = MonotonicNow();
  while (fd_ >= 0 && sent < out_.size()) {
    const ssize_t put =
        ::send(fd_, out_.data() + sent, out_.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) Close();
      break;
    }
    sent += static_cast<std::size_t>(put);
  }
  out_.erase(0, sent);
  if (fd_ < 0) out_.clear();
  if (out_.empty()) {
    needed_ = false;
  } else {
    load_->Touch(this);  // it reads slower than we write: try again in the next turn
  }
  return {};
}

Result<std::shared_ptr<const msg::ToWorker>> Load::Impl::Decode(std::span<const std::byte> frame) {
  const std::string_view bytes(reinterpret_cast<const char*>(frame.data()), frame.size());
  if (last_message_ == nullptr || bytes != last_bytes_) {
    auto message = control::DecodeToWorker(frame);
    if (!message) return message.error();
    last_bytes_ = bytes;
    last_message_ = std::make_shared<const msg::ToWorker>(*std::move(message));
  }
  return last_message_;
}

void Load::Impl::Note(const msg::Commit& commit, Time arrived) {
  if (seen_by_ == 0 || commit.round != seen_.round) {
    seen_ = {commit.round, needed_, arrived, arrived};
    seen_by_ = 0;
  }
  seen_.first = std::min(seen_.first, arrived);
  seen_.last = std::max(seen_.last, arrived);
  if (++seen_by_ < options_.workers) return;
  const bool held = compute_.spaced();
  compute_.SpaceOver(on_commit_(seen_));
  if (!held) return;
  for (const auto& connection : connections_) connection->Answer();
}

Status Load::Impl::Connect() {
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) return Failed("epoll");
  for (std::uint32_t i = 0; i < options_.workers; ++i) {
    connections_.push_back(std::make_unique<Connection>(this, i));
    if (Status opened = connections_.back()->Open(); !opened) return opened;
    connections_.back()->Start();
    // Send it at once: the coordinator keeps few places for connections without a Hello.
    if (Status flushed = FlushAll(); !flushed) return flushed;
  }
  return {};
}

void Load::Impl::RunTimers() {
  while (queue_.next() <= MonotonicNow()) queue_.RunNext();
}

Status Load::Impl::FlushAll() {
  for (Connection* connection : std::exchange(dirty_, {})) {
    if (Status flushed = connection->Flush(); !flushed) return flushed;
  }
  return {};
}

// It reads all that has come first, so that the times of arrival are not those of our own work.
Status Load::Impl::ReadAll(const std::vector<Connection*>& ready) {
  std::vector<Connection*> got;
  for (Connection* connection : ready) {
    if (!connection->open()) continue;
    auto read = connection->Read();
    if (!read) return read.error();
    got.push_back(connection);
  }
  for (Connection* connection : got) {
    if (Status taken = connection->TakeFrames(); !taken) return taken;
  }
  return {};
}

Status Load::Impl::Run(Child& coordinator, Signals& signals) {
  if (Status connected = Connect(); !connected) return connected;
  for (const int fd : {coordinator.fd(), signals.fd()}) {
    ::epoll_event event{};
    event.events = EPOLLIN;
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
  }
  std::vector<::epoll_event> events(options_.workers + 2);
  std::vector<Connection*> ready;
  while (!coordinator.Status()) {
    RunTimers();
    if (Status flushed = FlushAll(); !flushed) return flushed;
    const Duration until =
        queue_.empty() ? Duration::max() : std::max(queue_.next() - MonotonicNow(), Duration{});
    int timeout_ms = -1;
    if (!dirty_.empty() || until < kSpin) {
      timeout_ms = 0;
    } else if (until != Duration::max()) {
      timeout_ms = static_cast<int>(
          std::chrono::duration_cast<std::chrono::milliseconds>(until - kSpin).count());
    }
    const int count =
        ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), timeout_ms);
    ready.clear();
    for (int i = 0; i < count; ++i) {
      auto* connection = static_cast<Connection*>(events[static_cast<std::size_t>(i)].data.ptr);
      if (connection != nullptr) ready.push_back(connection);
    }
    if (static_cast<int>(ready.size()) < count && signals.Came()) return Interrupted();
    if (Status read = ReadAll(ready); !read) return read;
  }
  return {};
}

Load::Load(const LoadOptions& options, OnCommit on_commit)
    : impl_(std::make_unique<Impl>(options, std::move(on_commit))) {}
Load::~Load() = default;

Status Load::Run(Child& coordinator, Signals& signals) { return impl_->Run(coordinator, signals); }

}  // namespace lockstep::bench
