// The reader of the API's description, as whoever is signed in.
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#reference",
  deepLinking: true,
  requestInterceptor(request) {
    request.headers["x-leasehold-page"] = "1";
    return request;
  },
});
