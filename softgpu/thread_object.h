// An object of each thread that outlives what programs run when a thread ends.
//
// `thread_local T` does not: its destructor runs before those of thread_local objects that were
// made earlier, and before those of all pthread keys. These may launch kernels. A library that has
// a ThreadObject must stay loaded (-z nodelete), because the end of a thread calls into it.
#pragma once

#include <limits.h>
#include <pthread.h>

namespace softgpu {

/// Deleted in the last round but one of the destructors of pthread keys. A use after that makes a
/// new T, which the last round deletes. The T of a thread that calls exit() stays for the handlers
/// and destructors of the exit.
template <class T>
class ThreadObject {
 public:
  /// The calling thread's T, made at its first use.
  static T& get() {
    if (own_ == nullptr) make();
    return *own_;
  }

 private:
  struct Key {
    Key() { made = pthread_key_create(&key, round_ends) == 0; }
    pthread_key_t key = 0;
    bool made;
  };

  static void make() {
    own_ = new T;
    keep();
  }

  /// Asks for a call at the end of the thread, or in the next round of it.
  static void keep() {
    static const Key key;
    if (key.made) pthread_setspecific(key.key, own_);
  }

  static void round_ends(void*) {
    if (++rounds_ < PTHREAD_DESTRUCTOR_ITERATIONS - 1) return keep();
    delete own_;  // may ask for itself
    own_ = nullptr;
  }

  static inline constinit thread_local T* own_ = nullptr;
  static inline constinit thread_local int rounds_ = 0;
};

}  // namespace softgpu
