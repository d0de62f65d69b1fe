# The distribution's ffmpeg over the software GPU: its filters on CUDA, bare and under the shim.
sluice_unsanitized(skip any programs.ffmpeg "a program that was not built with the sanitizer loads the driver")
if(NOT skip)
  add_test(NAME programs.ffmpeg COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/ffmpeg_test.py
    --build ${PROJECT_BINARY_DIR})
  set_tests_properties(programs.ffmpeg PROPERTIES LABELS programs SKIP_RETURN_CODE 77)
endif()
