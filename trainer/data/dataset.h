// Labelled images for training and for evaluation, held as bytes: Fashion-MNIST from its IDX files,
// or a synthetic set that needs no file. What the model sees is the byte scaled by fixed constants
// (pixel_value).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sluice::train {

inline constexpr int kImagePixels = 28 * 28;
inline constexpr int kClassCount = 10;
/// Where Debian's dataset-fashion-mnist installs.
inline constexpr char kFashionDirectory[] = "/usr/share/datasets/fashion-mnist";

struct ImageSet {
  std::vector<std::uint8_t> pixels;  // kImagePixels an image
  std::vector<std::uint8_t> labels;  // below kClassCount

  std::uint32_t size() const { return static_cast<std::uint32_t>(labels.size()); }
  std::span<const std::uint8_t> image(std::uint32_t index) const {
    return std::span(pixels).subspan(static_cast<std::size_t>(index) * kImagePixels, kImagePixels);
  }
};

struct Dataset {
  ImageSet train;
  ImageSet test;
  std::string name;
};

/// Mean and deviation of Fashion-MNIST's training pixels over 255; used for every set, so that
/// weights fit all.
inline float pixel_value(std::uint8_t pixel) {
  return (static_cast<float>(pixel) / 255.0f - 0.2860f) / 0.3530f;
}

/// The four files of `directory`. At most train_max training images are read (0 = all).
Dataset fashion_read(const std::string& directory, std::uint32_t train_max);

/// Ten prototypes plus noise, a function of the seed alone: linearly separable in the main, so that
/// a right trainer gets above 90 % and a wrong one does not.
Dataset synthetic_draw(std::uint64_t seed, std::uint32_t train_count, std::uint32_t test_count);

}  // namespace sluice::train
