# The places of `cmake --install`, and the package that find_package(lockstep CONFIG) finds: the public headers below include/lockstep,
# so that #include "base/ids.h" reads there as it does here; the targets lockstep::*; the programs, lockstep-launch, lockstep-ctl and others.
include(CMakePackageConfigHelpers)

get_property(lockstep_libraries GLOBAL PROPERTY LOCKSTEP_LIBRARIES)
get_property(lockstep_programs GLOBAL PROPERTY LOCKSTEP_PROGRAMS)
set(lockstep_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/lockstep")

# programs: all of them and nothing else.
add_custom_target(programs)
if(lockstep_programs)
  add_dependencies(programs ${lockstep_programs})
  install(TARGETS ${lockstep_programs} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()
foreach(tool launch ctl slowdown compare check-run import-trace)
  install(PROGRAMS "${PROJECT_SOURCE_DIR}/tools/${tool}" DESTINATION "${CMAKE_INSTALL_BINDIR}" RENAME lockstep-${tool})
endforeach()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/tools/lib/lockstep_compare" "${PROJECT_SOURCE_DIR}/tools/lib/lockstep_launch"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/lockstep" FILES_MATCHING PATTERN "*.py")
install(FILES "${PROJECT_SOURCE_DIR}/tools/lib/command_line.py" "${PROJECT_SOURCE_DIR}/tools/lib/control_http.py"
              "${PROJECT_SOURCE_DIR}/tools/lib/slowdown_request.py"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/lockstep")

install(TARGETS lockstep_options ${lockstep_libraries} EXPORT lockstepTargets
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT lockstepTargets NAMESPACE lockstep:: DESTINATION "${lockstep_package_dir}")

# For training loops (session.h; lockstep.h, for C, is worker/capi's) and policies of one's own (plugin.h, and the halves that a policy of
# one half may take from us). These and what they include are installed; all others may change at any time.
set(left worker/runtime/session.h policies/plugin.h policies/waiting.h policies/work_none.h base/random.h)
set(lockstep_installed_headers)
while(left)
  list(POP_FRONT left header)
  if(NOT header IN_LIST lockstep_installed_headers)
    list(APPEND lockstep_installed_headers "${header}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${header}")
    get_filename_component(folder "${header}" DIRECTORY)
    install(FILES "${PROJECT_SOURCE_DIR}/${header}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/lockstep/${folder}")
    file(STRINGS "${PROJECT_SOURCE_DIR}/${header}" includes REGEX "^#include \"")
    list(TRANSFORM includes REPLACE "^#include \"([^\"]+)\".*$" "\\1")
    list(APPEND left ${includes})
  endif()
endwhile()

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/lockstepConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/lockstepConfig.cmake" INSTALL_DESTINATION "${lockstep_package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/lockstepConfig.cmake" "${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake"
        DESTINATION "${lockstep_package_dir}")
