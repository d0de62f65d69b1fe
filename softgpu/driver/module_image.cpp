// From an image to code: which PTX of it this device takes, and what is told when it takes none.
// The words follow the vendor's compiler, because programs and people look for its "line N".
#include <cctype>
#include <cstring>

#include "softgpu/driver/module.h"
#include "softgpu/driver/profile.h"

namespace softgpu::driver {
namespace {

constexpr int kTarget = kComputeMajor * 10 + kComputeMinor;
/// PTX ISA of the toolkit that this driver's version belongs to.
constexpr int kPtxVersionMax = 90;

bool image_is_text(const void* image) {
  const char* text = static_cast<const char*>(image);
  while (*text != '\0' && std::isspace(static_cast<unsigned char>(*text)) != 0) ++text;
  return *text == '.' || *text == '/';
}

/// "line 7: expected ','" in the compiler's words.
std::string compiler_words(const std::string& trouble) {
  constexpr char kSource[] = "ptxas application ptx input";
  const std::size_t colon = trouble.find(": ");
  std::string words;
  if (trouble.starts_with("line ") && colon != trouble.npos)
    words = std::string(kSource) + ", " + trouble.substr(0, colon) +
            "; error   : " + trouble.substr(colon + 2);
  else
    words = "ptxas error   : " + trouble;
  return words + "\nptxas fatal   : Ptx assembly aborted due to errors";
}

CUresult refuse(CUresult result, const std::string& trouble, LoadOptions& options) {
  options.trouble = trouble;
  options.log = compiler_words(trouble);
  return result;
}

/// Says why a module is not loaded. `outline` tells which one, by the first of its kernels.
CUresult complain(CUresult result, const LoadOptions& options, const TextOutline* outline) {
  if (result == CUDA_SUCCESS) return result;
  std::string module = "module";
  if (outline != nullptr)
    for (const TextItem& item : outline->items) {
      if (item.kind != TextItem::Kind::kEntry) continue;
      module += " of kernel " + std::string(item.name);
      break;
    }
  Process::get().complain(module + " not loaded: " + options.trouble + "; the call returns " +
                          error_name(result));
  return result;
}

CUresult status_error(ptx::LoadStatus status) {
  switch (status) {
    case ptx::LoadStatus::kOk:
      return CUDA_SUCCESS;
    case ptx::LoadStatus::kInvalidPtx:
    case ptx::LoadStatus::kUnresolved:
      return CUDA_ERROR_INVALID_PTX;
    case ptx::LoadStatus::kUnsupported:
      return CUDA_ERROR_NOT_SUPPORTED;
    case ptx::LoadStatus::kNoMemory:
      return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_ERROR_UNKNOWN;
}

/// What a text says of itself: which language and device it is for.
CUresult heading_check(const TextOutline& outline, LoadOptions& options) {
  if (outline.version > kPtxVersionMax)
    return refuse(CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
                  "Unsupported .version " + std::to_string(outline.version / 10) + "." +
                      std::to_string(outline.version % 10) + "; current version is '9.0'",
                  options);
  if (outline.target > kTarget)
    return refuse(CUDA_ERROR_INVALID_PTX,
                  "SM version specified by .target sm_" + std::to_string(outline.target) +
                      " is higher than that of the device, sm_" + std::to_string(kTarget),
                  options);
  return CUDA_SUCCESS;
}

CUresult text_check(const TextOutline& outline, LoadOptions& options) {
  const CUresult result = heading_check(outline, options);
  if (result != CUDA_SUCCESS) return result;
  const std::string_view open = text_unresolved(outline);
  if (!open.empty())
    return refuse(CUDA_ERROR_INVALID_PTX, "Unresolved extern '" + std::string(open) + "'", options);
  return CUDA_SUCCESS;
}

CUresult image_search(const void* image, LoadOptions& options, std::string& text) {
  if (options.target > static_cast<std::uint32_t>(kTarget))
    return refuse(CUDA_ERROR_NO_BINARY_FOR_GPU, "the target asked for is later than the device",
                  options);
  if (image_is_text(image)) {
    text = static_cast<const char*>(image);
    return CUDA_SUCCESS;
  }
  std::string error;
  std::vector<ptx::PtxImage> images = ptx::fatbin_images(image, &error);
  for (ptx::PtxImage& candidate : images) {
    if (candidate.target > static_cast<std::uint32_t>(kTarget)) continue;
    text = std::move(candidate.text);
    return CUDA_SUCCESS;
  }
  if (!images.empty())
    error = "only PTX for compute_" + std::to_string(images.back().target) +
            " or later: build with -arch=compute_" + std::to_string(kTarget) + " or lower";
  const bool foreign = !images.empty() || error.find("machine code") != std::string::npos;
  return refuse(foreign ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_ERROR_INVALID_IMAGE, error, options);
}

CUresult text_take(const std::string& text, const TextOutline& outline, ptx::Memory& memory,
                   LoadOptions& options,
                   std::unique_ptr<ptx::Module, void (*)(ptx::Module*)>& code) {
  const CUresult checked = text_check(outline, options);
  if (checked == CUDA_ERROR_UNSUPPORTED_PTX_VERSION) return checked;
  ptx::LoadResult result = ptx::module_load(text, memory);
  // An error with a line says more than one about the text as a whole.
  const bool has_line = result.status == ptx::LoadStatus::kInvalidPtx ||
                        result.status == ptx::LoadStatus::kUnresolved;
  if (has_line || checked == CUDA_SUCCESS) {
    if (result.status != ptx::LoadStatus::kOk)
      return refuse(status_error(result.status), result.log, options);
    code = std::move(result.module);
    return CUDA_SUCCESS;
  }
  return checked;
}

CUresult text_parse(const std::string& text, const TextOutline& outline, LoadOptions& options) {
  const CUresult checked = heading_check(outline, options);
  if (checked != CUDA_SUCCESS) return checked;
  HostMemory memory;
  const ptx::LoadResult result = ptx::module_load(text, memory);
  return result.status == ptx::LoadStatus::kInvalidPtx
             ? refuse(CUDA_ERROR_INVALID_PTX, result.log, options)
             : CUDA_SUCCESS;
}

}  // namespace

CUresult image_choose(const void* image, LoadOptions& options, std::string& text) {
  return complain(image_search(image, options, text), options, nullptr);
}

CUresult text_load(const std::string& text, ptx::Memory& memory, LoadOptions& options,
                   std::unique_ptr<ptx::Module, void (*)(ptx::Module*)>& code) {
  const TextOutline outline = text_outline(text);
  return complain(text_take(text, outline, memory, options, code), options, &outline);
}

CUresult text_examine(const std::string& text, LoadOptions& options) {
  const TextOutline outline = text_outline(text);
  return complain(text_parse(text, outline, options), options, &outline);
}

}  // namespace softgpu::driver
