// What each user takes of something that all users share, kept in what takes it: a charge begins
// with its owner and is returned with it, so nothing has to be counted when somebody asks for more,
// and nothing can be forgotten.
#pragma once

#include <sys/types.h>

#include <cassert>
#include <cstdint>
#include <map>
#include <utility>

namespace sluice::daemon {

/// What is said, under RefusalCode::kNoRoom, where the broker can make no descriptor.
inline constexpr char kNoDescriptors[] =
    "the broker has no file descriptors left; end some programs, or raise the broker's limit of "
    "open "
    "files (ulimit -n, or LimitNOFILE of its unit)";

/// Descriptors of the broker by the user who takes them; only users who have any.
using Descriptors = std::map<uid_t, std::uint32_t>;

/// Outlives every charge on it, which is checked.
class ChargeBook {
 public:
  ChargeBook() = default;
  ~ChargeBook() { assert(each_.empty() && "charges return to zero"); }
  ChargeBook(const ChargeBook&) = delete;
  ChargeBook& operator=(const ChargeBook&) = delete;

  void add_to(Descriptors* out) const {
    for (const auto& [uid, count] : each_) (*out)[uid] += count;
  }

 private:
  friend class DescriptorCharge;
  Descriptors each_;
};

class DescriptorCharge {
 public:
  DescriptorCharge() = default;
  DescriptorCharge(ChargeBook& book, uid_t uid, std::uint32_t count)
      : book_(&book), uid_(uid), count_(count) {
    book.each_[uid] += count;
  }
  ~DescriptorCharge() { give_back(); }
  DescriptorCharge(DescriptorCharge&& other) noexcept
      : book_(std::exchange(other.book_, nullptr)), uid_(other.uid_), count_(other.count_) {}
  DescriptorCharge& operator=(DescriptorCharge&& other) noexcept {
    if (this == &other) return *this;
    give_back();
    book_ = std::exchange(other.book_, nullptr);
    uid_ = other.uid_;
    count_ = other.count_;
    return *this;
  }

 private:
  void give_back() {
    if (book_ == nullptr) return;
    const auto found = book_->each_.find(uid_);
    assert(found != book_->each_.end() && found->second >= count_ && "what is returned was taken");
    if ((found->second -= count_) == 0) book_->each_.erase(found);
    book_ = nullptr;
  }

  ChargeBook* book_ = nullptr;  // null: of nothing
  uid_t uid_ = 0;
  std::uint32_t count_ = 0;
};

}  // namespace sluice::daemon
