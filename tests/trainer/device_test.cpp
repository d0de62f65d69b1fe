// The device layer: memory, copies, events, errors with their names.
#include "tests/trainer/device_fixture.h"

namespace sluice::tests {
namespace {

class DeviceLayerTest : public DeviceTest {};

TEST_F(DeviceLayerTest, KnowsItsDevice) {
  EXPECT_GE(train::device_count(), 1);
  EXPECT_FALSE(stream().device().name().empty());
  EXPECT_GE(stream().device().multiprocessors(), 1);
}

TEST_F(DeviceLayerTest, CopiesThereAndBackAndClears) {
  const Floats values = floats_draw(12345, 1);
  OnDevice<float> array(stream(), values);
  EXPECT_EQ(array.values(), values);
  stream().zero(array.at() + 4 * sizeof(float), 2);
  Floats expected = values;
  expected[4] = expected[5] = 0;
  EXPECT_EQ(array.values(), expected);
}

TEST_F(DeviceLayerTest, EventsGiveTimeBetweenThem) {
  const std::size_t count = 1 << 20;
  OnDevice<float> array(stream(), Floats(count, 1.0f));
  train::Event begin;
  train::Event end;
  begin.record(stream());
  stream().launch(kernels::array_scale(static_cast<int>(count), 2.0f, array.at()));
  end.record(stream());
  stream().synchronize();
  EXPECT_GT(end.since(begin), 0);
}

TEST_F(DeviceLayerTest, AnImpossibleAllocationNamesTheError) {
  try {
    train::DeviceArray<float> array(std::size_t{1} << 50);
    FAIL() << "got 4 PiB";
  } catch (const train::DriverFailure& failure) {
    EXPECT_EQ(failure.code, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_NE(std::string(failure.what()).find("allocating device memory"), std::string::npos);
  }
}

TEST_F(DeviceLayerTest, NoSuchDeviceIsAFailure) {
  EXPECT_THROW(train::Device(1000), train::DriverFailure);
}

}  // namespace
}  // namespace sluice::tests
