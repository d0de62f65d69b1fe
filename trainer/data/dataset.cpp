// See dataset.h.
#include "trainer/data/dataset.h"

#include <algorithm>
#include <filesystem>

#include "trainer/base/failure.h"
#include "trainer/base/random.h"
#include "trainer/data/idx.h"

namespace sluice::train {
namespace {

// A class's prototype lies at most this far from grey and the noise has this deviation, in grey
// levels. With 784 independent pixels the classes are far apart, but single pixels say little.
constexpr double kPrototypeSpread = 16.0;
constexpr double kNoise = 60.0;
constexpr double kGrey = 128.0;

ImageSet images_read(const std::string& directory, const std::string& stem,
                     std::uint32_t count_max) {
  const std::string image_path = directory + "/" + stem + "-images-idx3-ubyte.gz";
  const std::string label_path = directory + "/" + stem + "-labels-idx1-ubyte.gz";
  IdxArray images = idx_read(image_path, 3, count_max);
  IdxArray labels = idx_read(label_path, 1, count_max);
  if (images.extents[1] * images.extents[2] != kImagePixels) {
    throw Failure(text_format("%s has images of %ux%u pixels; 28x28 are expected",
                              image_path.c_str(), images.extents[1], images.extents[2]));
  }
  if (images.extents[0] != labels.extents[0]) {
    throw Failure(
        text_format("%s has %u images but %s has %u labels; they belong to different sets",
                    image_path.c_str(), images.extents[0], label_path.c_str(), labels.extents[0]));
  }
  const std::uint8_t highest = *std::max_element(labels.bytes.begin(), labels.bytes.end());
  if (highest >= kClassCount) {
    throw Failure(text_format("%s has a label %u; labels are 0 to %d", label_path.c_str(), highest,
                              kClassCount - 1));
  }
  return {std::move(images.bytes), std::move(labels.bytes)};
}

ImageSet synthetic_images(const std::vector<double>& prototypes, std::uint32_t count,
                          Random random) {
  ImageSet set;
  set.pixels.reserve(static_cast<std::size_t>(count) * kImagePixels);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t label = random.below(kClassCount);
    set.labels.push_back(static_cast<std::uint8_t>(label));
    const double* prototype = &prototypes[static_cast<std::size_t>(label) * kImagePixels];
    for (int pixel = 0; pixel < kImagePixels; ++pixel) {
      const double value = prototype[pixel] + kNoise * random.normal();
      set.pixels.push_back(static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0)));
    }
  }
  return set;
}

}  // namespace

Dataset fashion_read(const std::string& directory, std::uint32_t train_max) {
  if (!std::filesystem::exists(directory + "/train-images-idx3-ubyte.gz")) {
    throw Failure("no Fashion-MNIST in " + directory +
                  "; install Debian's package dataset-fashion-mnist, name its directory with "
                  "--data-dir, or train on --data synthetic");
  }
  Dataset data;
  data.train = images_read(directory, "train", train_max);
  data.test = images_read(directory, "t10k", 0);
  data.name = "Fashion-MNIST";
  return data;
}

Dataset synthetic_draw(std::uint64_t seed, std::uint32_t train_count, std::uint32_t test_count) {
  Random random(seed, 1);
  std::vector<double> prototypes(static_cast<std::size_t>(kClassCount) * kImagePixels);
  for (double& value : prototypes) {
    value = kGrey + kPrototypeSpread * (2.0 * random.uniform() - 1.0);
  }
  Dataset data;
  data.train = synthetic_images(prototypes, train_count, Random(seed, 2));
  data.test = synthetic_images(prototypes, test_count, Random(seed, 3));
  data.name = "synthetic";
  return data;
}

}  // namespace sluice::train
