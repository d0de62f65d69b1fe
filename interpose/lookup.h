// The process's symbol look-ups: the real dlsym and dlvsym, and what ours answers. It knows the
// table, not the driver's functions themselves.
#pragma once

namespace sluice::interpose {

/// The dlsym that the process would use without us (the next object's; glibc's as a rule). Never
/// nullptr after lookup_prepare(), which every path here calls first.
void lookup_prepare();
void* real_dlsym(void* handle, const char* name);
void* real_dlvsym(void* handle, const char* name, const char* version);
/// True when the address lies in this library.
bool address_is_ours(const void* address);
/// The object that a program itself asked for a driver name, e.g. one opened by an absolute path;
/// nullptr if none did.
void* driver_handle_seen();

}  // namespace sluice::interpose
