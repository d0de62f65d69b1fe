// The table of texture and surface objects, and how long they live. See image.h.
#include "softgpu/driver/image.h"

namespace softgpu::driver {

ImageTable& ImageTable::get() {
  static auto* table = new ImageTable;  // never destroyed: threads may still run at exit
  return *table;
}

std::uint64_t ImageTable::add(ImageRef object) {
  const std::unique_lock lock(mutex_);
  any_ = true;
  living_.emplace(next_, std::move(object));
  return next_++;
}

ImageRef ImageTable::find(std::uint64_t handle) const {
  const std::shared_lock lock(mutex_);
  const auto found = living_.find(handle);
  return found == living_.end() ? nullptr : found->second;
}

void ImageTable::destroy(std::uint64_t handle) {
  const std::unique_lock lock(mutex_);
  auto object = living_.extract(handle);
  if (object.empty()) return;
  destroyed_.insert(std::move(object));
  graves_.push_back({++moment_, handle});
  sweep_locked();
}

void ImageTable::leave(std::uint64_t context) {
  const std::unique_lock lock(mutex_);
  const auto of_context = [context](const auto& entry) { return entry.second->context == context; };
  std::erase_if(living_, of_context);
  std::erase_if(destroyed_, of_context);
}

const ptx::Image* ImageTable::see(std::uint64_t handle, std::uint64_t context) const {
  const std::shared_lock lock(mutex_);
  for (const auto* table : {&living_, &destroyed_}) {
    const auto found = table->find(handle);
    if (found != table->end())
      return found->second->context == context ? &found->second->image : nullptr;
  }
  return nullptr;
}

std::size_t ImageTable::kept() const {
  const std::shared_lock lock(mutex_);
  return destroyed_.size();
}

/// Work submitted at a moment has seen what was destroyed up to then go.
void ImageTable::sweep_locked() {
  while (!graves_.empty() && (holds_.empty() || graves_.front().moment <= *holds_.begin())) {
    destroyed_.erase(graves_.front().handle);
    graves_.pop_front();
  }
}

ImageHold::ImageHold() {
  ImageTable& table = ImageTable::get();
  if (!table.any_.load(std::memory_order_relaxed)) return;
  const std::unique_lock lock(table.mutex_);
  moment_ = table.holds_.insert(table.moment_);
}

ImageHold::~ImageHold() {
  if (!moment_.has_value()) return;
  ImageTable& table = ImageTable::get();
  const std::unique_lock lock(table.mutex_);
  table.holds_.erase(*moment_);
  table.sweep_locked();
}

}  // namespace softgpu::driver
