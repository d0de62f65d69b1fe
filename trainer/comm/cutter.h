// Ends TCP connections from beneath whoever uses them. Gloo can only close connections, and then
// does not wake up who waits for them; shut down they end as if the other side had closed them, and
// everybody is told.
#pragma once

#include <vector>

namespace sluice::train {

class Cutter {
 public:
  /// Connections that this process has now are none of its business.
  Cutter();
  ~Cutter();
  Cutter(const Cutter&) = delete;
  Cutter& operator=(const Cutter&) = delete;

  /// Takes a second descriptor of every connection that is new: what it cuts later cannot be
  /// another one that has got the same number.
  void made();
  /// Any thread.
  void cut() const;

 private:
  const std::vector<int> before_;
  std::vector<int> own_;
};

}  // namespace sluice::train
