// User objects: something of the program's with a count of references and a destructor, which
// graphs and their instances can hold. The destructor runs on one internal thread that all share.
#pragma once

#include "softgpu/driver/state.h"

namespace softgpu::driver {

class UserObject : public std::enable_shared_from_this<UserObject> {
 public:
  UserObject(CUhostFn destroy, void* data, std::uint64_t references)
      : destroy_(destroy), data_(data), references_(references) {}
  void retain(std::uint64_t count) { references_ += count; }
  /// False: there are not so many. The last one ends the object.
  bool release(std::uint64_t count);
  CUuserObject handle() { return reinterpret_cast<CUuserObject>(this); }

 private:
  const CUhostFn destroy_;
  void* const data_;
  std::atomic<std::uint64_t> references_;
};
using UserObjectRef = std::shared_ptr<UserObject>;

/// References that one graph or one instance owns. A copy owns as many of its own.
class UserReferences {
 public:
  UserReferences() = default;
  ~UserReferences();
  UserReferences(const UserReferences& other);
  UserReferences& operator=(const UserReferences&) = delete;

  /// The references are there already: this becomes their owner.
  void own(const UserObjectRef& object, std::uint64_t count) { counts_[object] += count; }
  /// False: not so many are owned.
  bool release(const UserObjectRef& object, std::uint64_t count);
  /// As many more as the other owns.
  void add(const UserReferences& other);
  /// As many as the other owns, and no others.
  void replace(const UserReferences& other);

 private:
  std::map<UserObjectRef, std::uint64_t> counts_;
};

}  // namespace softgpu::driver
