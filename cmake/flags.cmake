# SPDX-License-Identifier: MIT
# Flags of every target. Contraction is off everywhere: FMA stands only where it is written.
add_compile_options(-Wall -Wextra -Wshadow -Wpointer-arith $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes> -Wundef -ffp-contract=off
                    -fvisibility=hidden -fno-math-errno -D_POSIX_C_SOURCE=200809L)
# Texts of errors are cut to their buffers on purpose.
add_compile_options($<$<C_COMPILER_ID:GNU>:-Wno-format-truncation>)
if(TAMIS_WERROR)
  add_compile_options(-Werror)
endif()
if(TAMIS_SANITIZE)
  add_compile_options(-fsanitize=${TAMIS_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${TAMIS_SANITIZE})
endif()
if(TAMIS_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
set(CMAKE_C_FLAGS_RELEASE "-O3 -DNDEBUG -g1")
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
