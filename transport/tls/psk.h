// TLS 1.3 with a key that both ends have (external PSK) and nothing else: no certificates, no
// tickets, nothing to resume; and the keys for it. Of the control plane and the data plane.
#pragma once

#include <openssl/ssl.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

namespace lockstep::transport::tls {

inline constexpr std::size_t kKeyBytes = 32;
using Key = std::array<unsigned char, kKeyBytes>;

// HKDF-SHA-256. Keys with different `info` tell nothing of each other.
Key DeriveKey(std::span<const std::byte> from, std::string_view salt, std::string_view info);

enum class Role { kServer, kClient };

struct Free {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};
using ContextPtr = std::unique_ptr<SSL_CTX, Free>;
using SslPtr = std::unique_ptr<SSL, Free>;

// The key is copied; the copy is wiped when the context ends.
ContextPtr MakeContext(Role role, const Key& key);

// A server's handshake calls `then`, once, as soon as it has read a hello that takes the key to
// make (RFC 8446, 4.2.11.2). The client may have recorded that hello: it proves itself at the end
// only. `then` must live as long as the handshake.
void OnHelloOfKey(SSL* ssl, std::function<void()>& then);

// Whether a finished handshake rests on the key. A peer could have offered a certificate instead.
bool ProvenByKey(SSL* ssl);

}  // namespace lockstep::transport::tls
