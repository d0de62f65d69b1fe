// Where the ranks of a job find each other: words under keys, which some ranks write and others
// wait for. Either files in a directory of the job's own, or, for a job on several machines, kept
// by the launcher of its first node (train/rendezvous.h), whom ranks ask over TCP.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "trainer/comm/frames.h"

namespace sluice::train {

/// Of a job on several machines. As text it stands where a directory would: everything that names a
/// part of it by appending "/part" works for both.
struct NetworkPlace {
  HostPort rendezvous;
  std::string token;    // of the job, as the rendezvous gave it
  std::string address;  // by which other ranks reach this process
  bool shares = false;  // ranks of the job share a GPU, on whatever machine
  std::string prefix;   // of keys; begins with "/" where there is one

  std::string text() const;
};
/// None where `place` is a directory.
std::optional<NetworkPlace> network_place_parse(const std::string& place);

/// The address at which this process waits for other ranks: of the loopback, but in a network.
std::string place_address(const std::string& place);
/// A part of `place` with keys of its own, made if need be. Throws Failure.
std::string place_part(const std::string& place, const std::string& part);

class RankStore {
 public:
  virtual ~RankStore() = default;
  /// Whole or not at all.
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits for it until `deadline`; none where it has not come by then, after which nothing more
  /// can be asked. Throws PeerFailure when `cancelled` says so, or the store is gone.
  virtual std::optional<std::string> get(const std::string& key, Nanos deadline) = 0;
};

/// `cancelled` may be empty. Throws Failure where the place cannot be reached in time.
std::unique_ptr<RankStore> store_open(const std::string& place, double timeout_s,
                                      std::function<bool()> cancelled);

}  // namespace sluice::train
