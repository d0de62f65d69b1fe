# bpftool writes the skeleton to its standard output: keep it in a file, and no half of one when bpftool fails.
execute_process(COMMAND ${BPFTOOL} gen skeleton ${OBJECT} name ${NAME}
  OUTPUT_FILE ${OUT}.part RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "bpftool gen skeleton failed: ${result}")
endif()
file(RENAME ${OUT}.part ${OUT})
