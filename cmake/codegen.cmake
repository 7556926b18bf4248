# fargpu_codegen(VARIABLE template.j2 ...): renders templates of protocol/codegen/templates into
# the current build folder and puts the names of the outputs into VARIABLE.
set(FARGPU_API_DIR "${PROJECT_SOURCE_DIR}/protocol/api")
set(FARGPU_CODEGEN_DIR "${PROJECT_SOURCE_DIR}/protocol/codegen")
file(GLOB FARGPU_API_FILES CONFIGURE_DEPENDS "${FARGPU_API_DIR}/*.yaml")

# Debian's interpreter has the PyYAML and Jinja2 packages; another python3 in PATH may not.
find_program(FARGPU_PYTHON NAMES python3 PATHS /usr/bin NO_DEFAULT_PATH)
if(NOT FARGPU_PYTHON)
  set(FARGPU_PYTHON "${Python3_EXECUTABLE}")
endif()

function(fargpu_codegen variable)
  set(outputs "")
  foreach(template IN LISTS ARGN)
    string(REGEX REPLACE "\\.j2$" "" name "${template}")
    set(output "${CMAKE_CURRENT_BINARY_DIR}/${name}")
    add_custom_command(
      OUTPUT "${output}"
      COMMAND "${FARGPU_PYTHON}" "${FARGPU_CODEGEN_DIR}/emit.py" "${FARGPU_API_DIR}"
              "${FARGPU_CODEGEN_DIR}/templates/${template}" "${output}"
      DEPENDS ${FARGPU_API_FILES} "${FARGPU_CODEGEN_DIR}/emit.py" "${FARGPU_CODEGEN_DIR}/load.py"
              "${FARGPU_CODEGEN_DIR}/templates/${template}"
      COMMENT "Generating ${name}" VERBATIM)
    list(APPEND outputs "${output}")
  endforeach()
  set(${variable} "${outputs}" PARENT_SCOPE)
endfunction()
