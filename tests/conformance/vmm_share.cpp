// Rows of family `vmm`: memory that goes to another process as a file descriptor.
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <memory>

#include "tests/conformance/ipc_partner.h"
#include "tests/conformance/vmm.h"

namespace conformance {
namespace {

int descriptor_of(CUmemGenericAllocationHandle memory) {
  int file = -1;
  EXPECT_EQ(cuMemExportToShareableHandle(&file, memory, kDescriptorHandle, 0), CUDA_SUCCESS);
  return file;
}

/// Memory of another process, mapped here.
class Imported {
 public:
  Imported(int file, std::size_t bytes) : range_(bytes) {
    EXPECT_EQ(cuMemImportFromShareableHandle(&handle_, os_handle(file), kDescriptorHandle),
              CUDA_SUCCESS);
    close(file);
    mapped_ = std::make_unique<Mapped>(range_.at(), bytes, handle_);
  }
  ~Imported() { EXPECT_EQ(cuMemRelease(handle_), CUDA_SUCCESS); }
  Imported(const Imported&) = delete;
  Imported& operator=(const Imported&) = delete;
  CUdeviceptr at() const { return range_.at(); }
  CUmemGenericAllocationHandle handle() const { return handle_; }

 private:
  Range range_;
  CUmemGenericAllocationHandle handle_ = 0;
  std::unique_ptr<Mapped> mapped_;
};

ROW(vmm, export_needs_the_handle_type) {
  const Context context;
  const Physical memory(vmm_unit());
  int file = -1;
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuMemExportToShareableHandle(&file, memory, kDescriptorHandle, 0));
}

ROW(vmm, export_checks_its_arguments) {
  const Context context;
  const Physical memory(vmm_unit(), vmm_prop(kDescriptorHandle));
  int file = -1;
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuMemExportToShareableHandle(nullptr, memory, kDescriptorHandle, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuMemExportToShareableHandle(&file, memory, kDescriptorHandle, 1));
}

ROW(vmm, import_refuses_other_files) {
  const Context context;
  const int file = open("/dev/null", O_RDWR | O_CLOEXEC);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_NE(cuMemImportFromShareableHandle(&handle, os_handle(file), kDescriptorHandle),
            CUDA_SUCCESS);
  close(file);
}

ROW(vmm, imports_show_the_same_memory) {
  Partner importer([](Channel& channel) {
    const Context context;
    const auto bytes = channel.get<std::size_t>();
    const Imported imported(channel.get_file(), bytes);
    EXPECT_EQ(word_read(imported.at() + 128), 61U);
    MUST(cuMemsetD32(imported.at() + 128, 62, 1));
    MUST(cuCtxSynchronize());
    channel.signal();
  });
  const Context context;
  const std::size_t unit = vmm_unit();
  const Physical memory(unit, vmm_prop(kDescriptorHandle));
  const Range range(unit);
  const Mapped mapped(range.at(), unit, memory);
  MUST(cuMemsetD32(range.at() + 128, 61, 1));
  MUST(cuCtxSynchronize());
  const int file = descriptor_of(memory);
  importer.put(unit);
  importer.put_file(file);
  close(file);
  importer.await();
  EXPECT_EQ(word_read(range.at() + 128), 62U);
}

ROW(vmm, imports_take_no_memory_of_their_own) {
  Partner importer([](Channel& channel) {
    const Context context;
    const auto bytes = channel.get<std::size_t>();
    const std::size_t before = memory_free();
    const Imported imported(channel.get_file(), bytes);
    EXPECT_GT(memory_free() + bytes / 2, before);
    channel.signal();
  });
  const Context context;
  const std::size_t bytes = 32 * vmm_unit();
  const Physical memory(bytes, vmm_prop(kDescriptorHandle));
  const int file = descriptor_of(memory);
  importer.put(bytes);
  importer.put_file(file);
  close(file);
  importer.await();
}

ROW(vmm, imports_keep_the_memory) {
  Partner importer([](Channel& channel) {
    const Context context;
    const auto bytes = channel.get<std::size_t>();
    const std::size_t before = memory_free();
    {
      const Imported imported(channel.get_file(), bytes);
      channel.signal();
      channel.await();  // the exporter has released it
      EXPECT_EQ(word_read(imported.at()), 71U);
      EXPECT_LT(memory_free_below(before + bytes / 2), before + bytes / 2);
    }
    EXPECT_GE(memory_free_from(before + bytes / 2), before + bytes / 2);
    channel.signal();
  });
  const Context context;
  const std::size_t bytes = 32 * vmm_unit();
  {
    const Physical memory(bytes, vmm_prop(kDescriptorHandle));
    const Range range(bytes);
    const Mapped mapped(range.at(), bytes, memory);
    MUST(cuMemsetD32(range.at(), 71, 1));
    MUST(cuCtxSynchronize());
    const int file = descriptor_of(memory);
    importer.put(bytes);
    importer.put_file(file);
    close(file);
    importer.await();
  }
  importer.signal();
  importer.await();
}

ROW(vmm, a_descriptor_keeps_the_contents) {
  const Context context;
  const std::size_t unit = vmm_unit();
  int file = -1;
  {
    const Physical memory(unit, vmm_prop(kDescriptorHandle));
    const Range range(unit);
    const Mapped mapped(range.at(), unit, memory);
    MUST(cuMemsetD32(range.at(), 81, 1));
    MUST(cuCtxSynchronize());
    file = descriptor_of(memory);
  }
  const Imported imported(file, unit);
  EXPECT_EQ(word_read(imported.at()), 81U);
}

ROW(vmm, a_descriptor_keeps_the_memory_taken) {
  const Context context;
  const std::size_t bytes = 32 * vmm_unit();
  const std::size_t before = memory_free();
  Physical memory(bytes, vmm_prop(kDescriptorHandle));
  const int file = descriptor_of(memory);
  const int copy = dup(file);
  memory.release();
  close(file);
  EXPECT_LT(memory_free_below(before - bytes / 2), before - bytes / 2);
  close(copy);
  EXPECT_GE(memory_free_from(before - bytes / 2), before - bytes / 2);
}

ROW(vmm, imports_tell_their_properties) {
  const Context context;
  const std::size_t unit = vmm_unit();
  const Physical memory(unit, vmm_prop(kDescriptorHandle));
  const Imported imported(descriptor_of(memory), unit);
  CUmemAllocationProp prop{};
  MUST(cuMemGetAllocationPropertiesFromHandle(&prop, imported.handle()));
  EXPECT_EQ(prop.type, CU_MEM_ALLOCATION_TYPE_PINNED);
  EXPECT_EQ(prop.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(prop.location.id, 0);
}

ROW(vmm, each_import_is_released_by_itself) {
  const Context context;
  const std::size_t bytes = 32 * vmm_unit();
  const std::size_t before = memory_free();
  Physical memory(bytes, vmm_prop(kDescriptorHandle));
  const int file = descriptor_of(memory);
  CUmemGenericAllocationHandle first = 0, second = 0;
  MUST(cuMemImportFromShareableHandle(&first, os_handle(file), kDescriptorHandle));
  MUST(cuMemImportFromShareableHandle(&second, os_handle(file), kDescriptorHandle));
  close(file);
  memory.release();
  MUST(cuMemRelease(first));
  EXPECT_LT(memory_free(), before - bytes / 2);
  MUST(cuMemRelease(second));
  EXPECT_GE(memory_free() + bytes / 2, before);
}

ROW(vmm, a_killed_importer_leaves_nothing) {
  Partner importer([](Channel& channel) {
    const Context context;
    const auto bytes = channel.get<std::size_t>();
    const Imported imported(channel.get_file(), bytes);
    channel.signal();
    channel.await();
  });
  const Context context;
  const std::size_t bytes = 32 * vmm_unit();
  const std::size_t before = memory_free();
  Physical memory(bytes, vmm_prop(kDescriptorHandle));
  const int file = descriptor_of(memory);
  importer.put(bytes);
  importer.put_file(file);
  close(file);
  importer.await();
  importer.kill();
  memory.release();
  EXPECT_GE(memory_free() + bytes / 2, before);
}

ROW(vmm, a_killed_exporter_leaves_the_import) {
  Partner exporter([](Channel& channel) {
    channel.await();
    const Context context;
    const std::size_t bytes = 32 * vmm_unit();
    const Physical memory(bytes, vmm_prop(kDescriptorHandle));
    const Range range(bytes);
    const Mapped mapped(range.at(), bytes, memory);
    MUST(cuMemsetD32(range.at(), 91, 1));
    MUST(cuCtxSynchronize());
    channel.put(bytes);
    channel.put_file(descriptor_of(memory));
    channel.await();
  });
  const Context context;
  const std::size_t before = memory_free();
  exporter.signal();
  const auto bytes = exporter.get<std::size_t>();
  std::size_t shared = 0;
  {
    const Imported imported(exporter.get_file(), bytes);
    exporter.kill();
    EXPECT_EQ(word_read(imported.at()), 91U);
    shared = memory_free_below(before - bytes / 2);
    EXPECT_LT(shared, before - bytes / 2);
  }
  EXPECT_GE(memory_free_from(shared + bytes / 2), shared + bytes / 2);
}

/// Two units of exported memory of this process, and the same as external memory.
class External {
 public:
  External() : memory_(2 * vmm_unit(), vmm_prop(kDescriptorHandle)) {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC what{};
    what.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    what.handle.fd = file_ = descriptor_of(memory_);
    what.size = 2 * vmm_unit();
    EXPECT_EQ(cuImportExternalMemory(&object_, &what), CUDA_SUCCESS);
  }
  ~External() { destroy(); }
  External(const External&) = delete;
  External& operator=(const External&) = delete;
  void destroy() {
    if (object_ == nullptr) return;
    EXPECT_EQ(cuDestroyExternalMemory(object_), CUDA_SUCCESS);
    object_ = nullptr;
  }
  CUresult map(std::size_t offset, std::size_t bytes, CUdeviceptr& at) {
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC what{};
    what.offset = offset;
    what.size = bytes;
    return cuExternalMemoryGetMappedBuffer(&at, object_, &what);
  }
  Physical& memory() { return memory_; }
  int file() const { return file_; }

 private:
  Physical memory_;
  int file_ = -1;
  CUexternalMemory object_ = nullptr;
};

ROW(vmm, external_memory_takes_the_descriptor) {
  const Context context;
  const External external;
  EXPECT_EQ(fcntl(external.file(), F_GETFD), -1);
}

ROW(vmm, external_buffers_show_the_memory) {
  const Context context;
  External external;
  const Range range(2 * vmm_unit());
  const Mapped mapped(range.at(), 2 * vmm_unit(), external.memory());
  CUdeviceptr buffer = 0;
  ASSERT_EQ(external.map(vmm_unit(), vmm_unit(), buffer), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD32(range.at() + vmm_unit(), 77, 4), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  unsigned value = 0;
  EXPECT_EQ(cuMemcpyDtoH(&value, buffer, sizeof value), CUDA_SUCCESS);
  EXPECT_EQ(value, 77u);
  EXPECT_EQ(cuMemFree(buffer), CUDA_SUCCESS);
}

ROW(vmm, external_buffers_outlive_their_object) {
  const Context context;
  External external;
  CUdeviceptr buffer = 0;
  ASSERT_EQ(external.map(0, vmm_unit(), buffer), CUDA_SUCCESS);
  external.destroy();
  EXPECT_EQ(cuMemFree(buffer), CUDA_SUCCESS);
  EXPECT_NE(cuMemFree(buffer), CUDA_SUCCESS);
}

ROW(vmm, external_buffers_stay_within_the_object) {
  const Context context;
  External external;
  CUdeviceptr buffer = 7;
  EXPECT_NE(external.map(vmm_unit(), 2 * vmm_unit(), buffer), CUDA_SUCCESS);
  EXPECT_NE(external.map(2 * vmm_unit(), vmm_unit(), buffer), CUDA_SUCCESS);
  EXPECT_EQ(buffer, 7u);
}

}  // namespace
}  // namespace conformance
