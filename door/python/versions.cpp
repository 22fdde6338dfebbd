#include <nghttp2/nghttp2.h>
#include <openssl/crypto.h>

#include <string>

#include "door.h"

const char* gpkvs_door_versions(void) {
    static const std::string text = std::string("nghttp2 ") + nghttp2_version(0)->version_str + ", OpenSSL " +
                                    OpenSSL_version(OPENSSL_FULL_VERSION_STRING);
    return text.c_str();
}

const char* gpkvs_door_structs(void) { return DOOR_STRUCTS(STRUCT_TEXT); }
