// See store.h.
#include "trainer/comm/store.h"

#include <poll.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "trainer/comm/peer_failure.h"
#include "trainer/comm/rendezvous_wire.h"

namespace sluice::train {
namespace {

constexpr Nanos kLookGap = 5 * kNanosPerMilli;
constexpr char kNetworkScheme[] = "rendezvous:";

void cancelled_check(const std::function<bool()>& cancelled) {
  if (cancelled && cancelled()) throw PeerFailure("a rank was lost before all had met");
}

class DirectoryStore final : public RankStore {
 public:
  DirectoryStore(std::string directory, std::function<bool()> cancelled)
      : directory_(std::move(directory)), cancelled_(std::move(cancelled)) {}

  void set(const std::string& key, const std::string& value) override {
    const std::string path = directory_ + "/" + key;
    std::ofstream part(path + ".part", std::ios::binary);
    part.write(value.data(), static_cast<std::streamsize>(value.size()));
    part.close();
    if (!part) throw errno_failure("writing " + path);
    std::filesystem::rename(path + ".part", path);
  }

  std::optional<std::string> get(const std::string& key, Nanos deadline) override {
    const std::string path = directory_ + "/" + key;
    while (!std::filesystem::exists(path)) {
      cancelled_check(cancelled_);
      if (now_ns() > deadline) return std::nullopt;
      sleep_until(now_ns() + kLookGap);
    }
    std::ifstream file(path, std::ios::binary);
    return std::string{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

 private:
  const std::string directory_;
  const std::function<bool()> cancelled_;
};

class NetworkStore final : public RankStore {
 public:
  NetworkStore(const NetworkPlace& place, double timeout_s, std::function<bool()> cancelled)
      : place_(place),
        cancelled_(std::move(cancelled)),
        socket_(tcp_connect(place.rendezvous, now_ns() + nanos_of_seconds(timeout_s), cancelled_),
                kRendezvousBodyMax) {
    socket_.push(
        static_cast<std::uint8_t>(Note::kRankHello),
        BodyWriter().text(kRendezvousMagic).number(kRendezvousVersion).text(place.token).body());
  }

  void set(const std::string& key, const std::string& value) override {
    socket_.push(static_cast<std::uint8_t>(Note::kSet),
                 BodyWriter().text(place_.prefix + "/" + key).text(value).body());
    socket_check();
  }

  std::optional<std::string> get(const std::string& key, Nanos deadline) override {
    socket_.push(static_cast<std::uint8_t>(Note::kGet),
                 BodyWriter().text(place_.prefix + "/" + key).body());
    for (;;) {
      socket_.pump();
      if (const auto frame = socket_.next()) return value_of(*frame);
      socket_check();
      cancelled_check(cancelled_);
      if (now_ns() > deadline) return std::nullopt;
      const short sends = socket_.unsent() > 0 ? POLLOUT : 0;
      pollfd watched{socket_.fd(), static_cast<short>(POLLIN | sends), 0};
      const timespec gap = timespec_of(kLookGap);
      ppoll(&watched, 1, &gap, nullptr);
    }
  }

 private:
  std::string value_of(const Frame& frame) const {
    BodyReader body(frame.body);
    std::string text = body.text();
    if (frame.type == static_cast<std::uint8_t>(Note::kRefused))
      throw PeerFailure("refused by the rendezvous: " + text);
    if (frame.type != static_cast<std::uint8_t>(Note::kValue) || !body.ok())
      throw PeerFailure("the rendezvous does not speak as it must");
    return text;
  }
  void socket_check() const {
    if (!socket_.broken().empty()) {
      throw PeerFailure("lost the rendezvous at " + place_.rendezvous.text() + ": " +
                        socket_.broken());
    }
  }

  const NetworkPlace place_;
  const std::function<bool()> cancelled_;
  FrameSocket socket_;
};

}  // namespace

std::string NetworkPlace::text() const {
  return kNetworkScheme + rendezvous.text() + "," + token + "," + address + "," +
         (shares ? "1" : "0") + prefix;
}

std::optional<NetworkPlace> network_place_parse(const std::string& place) {
  if (place.rfind(kNetworkScheme, 0) != 0) return std::nullopt;
  const std::size_t slash = std::min(place.find('/'), place.size());
  std::string words[4];
  std::size_t at = sizeof kNetworkScheme - 1;
  for (std::string& word : words) {
    const std::size_t end = std::min(place.find(',', at), slash);
    word = place.substr(at, end - at);
    at = std::min(end + 1, slash);
  }
  const auto rendezvous = host_port_parse(words[0]);
  if (!rendezvous || words[1].empty() || words[2].empty()) return std::nullopt;
  return NetworkPlace{*rendezvous, words[1], words[2], words[3] == "1", place.substr(slash)};
}

std::string place_address(const std::string& place) {
  const auto network = network_place_parse(place);
  return network ? network->address : "127.0.0.1";
}

std::string place_part(const std::string& place, const std::string& part) {
  const std::string out = place + "/" + part;
  if (network_place_parse(place)) return out;
  if (mkdir(out.c_str(), 0700) != 0 && errno != EEXIST)
    throw errno_failure("making the directory " + out);
  return out;
}

std::unique_ptr<RankStore> store_open(const std::string& place, double timeout_s,
                                      std::function<bool()> cancelled) {
  const auto network = network_place_parse(place);
  if (network) return std::make_unique<NetworkStore>(*network, timeout_s, std::move(cancelled));
  return std::make_unique<DirectoryStore>(place, std::move(cancelled));
}

}  // namespace sluice::train
