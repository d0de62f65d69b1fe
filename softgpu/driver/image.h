// Texture and surface objects: memory or an array, and how kernels see it. A kernel names one by a
// number that it got as a value, from wherever: nobody knows which objects a launch uses. So an
// object that is destroyed stays for the work that was submitted before: each such operation holds
// what is there then (ImageHold).
#pragma once

#include <deque>
#include <optional>

#include "softgpu/driver/array.h"
#include "softgpu/ptx/texture.h"

namespace softgpu::driver {

/// Largest textures on plain memory, as the device attributes tell them.
inline constexpr std::size_t kTextureAlign = 512, kTexturePitchAlign = 32;
inline constexpr std::size_t kTextureLinearWidth = std::size_t{1} << 28;
inline constexpr std::size_t kTexturePitchedWidth = 131072, kTexturePitchedHeight = 65000;
inline constexpr std::size_t kTexturePitchMax = 2097120;  // bytes

struct ImageObject {
  CUDA_RESOURCE_DESC resource{};
  CUDA_TEXTURE_DESC sampling{};  // of textures
  std::optional<CUDA_RESOURCE_VIEW_DESC> view;
  ptx::Image image;
  std::uint64_t context = 0;  // id
};
using ImageRef = std::shared_ptr<ImageObject>;

/// Fills `image` from the descriptors of a texture. INVALID_VALUE: not what cuda.h allows;
/// NOT_SUPPORTED: mipmapped arrays, cubemaps, compressed formats, conversion from sRGB.
CUresult image_of_texture(ImageObject& object);
/// The same for a surface, which has a resource alone.
CUresult image_of_surface(ImageObject& object);
/// The type of the channels of a format, read as it is (integers as integers); nullopt: no texture
/// has that format here.
struct ImageFormat {
  ptx::Channel channel = ptx::Channel::kUnsigned;
  unsigned channels = 1;
  std::size_t bytes = 1;  // of a channel
};
std::optional<ImageFormat> image_format(CUarray_format format, unsigned channels);
/// Of a view; nullopt: compressed, or none.
std::optional<ImageFormat> image_format(CUresourceViewFormat format);

/// All objects of the process, by number. Numbers are not given twice.
class ImageTable {
 public:
  static ImageTable& get();
  std::uint64_t add(ImageRef object);
  /// Of a living object; nullptr: there is none.
  ImageRef find(std::uint64_t handle) const;
  /// No such object, or one that is destroyed already, is no error, as on hardware.
  void destroy(std::uint64_t handle);
  void leave(std::uint64_t context);
  /// What a kernel of this context sees: also what was destroyed behind it in its stream. Stays as
  /// long as a hold of the kernel's.
  const ptx::Image* see(std::uint64_t handle, std::uint64_t context) const;
  /// Objects that are destroyed and kept for work that may use them.
  std::size_t kept() const;

 private:
  friend class ImageHold;
  struct Grave {
    std::uint64_t moment;
    std::uint64_t handle;
  };
  void sweep_locked();

  mutable std::shared_mutex mutex_;
  std::unordered_map<std::uint64_t, ImageRef> living_, destroyed_;
  std::deque<Grave> graves_;             // in the order of their moments
  std::multiset<std::uint64_t> holds_;   // moments at which work was submitted that is not done
  std::uint64_t next_ = 1, moment_ = 0;  // moments: destructions are counted
  std::atomic<bool> any_{false};         // ever
};

/// Keeps the objects that are there when it is made. Costs a load where there never was one.
class ImageHold {
 public:
  ImageHold();
  ~ImageHold();
  ImageHold(const ImageHold&) = delete;
  ImageHold& operator=(const ImageHold&) = delete;

 private:
  std::optional<std::multiset<std::uint64_t>::iterator> moment_;
};

}  // namespace softgpu::driver
